#include "model/hooks.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace invar {

Hooks::Hooks(const Decoder& model, const Batch& batch, Workspace& ws, ForwardIo& io)
    : model_(model),
      batch_(batch),
      ws_(ws),
      io_(io),
      rows_(static_cast<int64_t>(batch.rows.size())) {
  CHECK(!io.tape || (rows_ <= io.tape->max_rows() && std::ssize(batch.logit_rows) == rows_),
        "a tape keeps whole batches");
  CHECK(std::ssize(batch.aux_layers) <= ws.max_aux_layers,
        "more aux hidden states than the workspace holds");
}

const LayerActivations& Hooks::layer(int index) const {
  return io_.tape ? io_.tape->layer(index) : ws_.layers[static_cast<size_t>(index)];
}

Activation Hooks::final_normed(int module) const {
  return io_.tape ? io_.tape->final_normed(module) : ws_.final_normed;
}

void Hooks::keep_hidden(float* copy) const {
  if (!copy) return;
  const int64_t width = model_.spec.hidden;
  timed(io_.times, "keep", [&] {
    const Execution& on = model_.execution;
    const size_t bytes = static_cast<size_t>(rows_ * width) * sizeof(float);
    if (!on.pool) return on.stream->copy_rows(copy, bytes, ws_.hidden.data(), bytes, bytes, 1);
    on.pool->run([&](Part part) {
      const auto [begin, end] = part.of(rows_ * width, kPanelWidth);
      std::memcpy(copy + begin, ws_.hidden.data() + begin, (end - begin) * sizeof(float));
    });
  });
}

void Hooks::keep_output(int module) const {
  if (io_.tape) keep_hidden(io_.tape->output(module));
}

float* Hooks::keep_module_input() const {
  float* input = io_.tape ? io_.tape->module_input() : nullptr;
  if (!input || io_.tape->norms_module_input()) return input;
  keep_hidden(input);
  return nullptr;
}

bool Hooks::takes_hidden_after(int layer) const {
  return std::ranges::find(batch_.aux_layers, layer) != batch_.aux_layers.end();
}

void Hooks::keep_experts(int layer, const int32_t* chosen) const {
  const DecoderSpec& spec = model_.spec;
  if (!batch_.wants_experts) return;
  CHECK(layer < spec.layers, "the experts of a module are not kept");
  int64_t before = 0;  // of the layers before
  for (int i = 0; i < layer; ++i)
    before += spec.layer_specs[static_cast<size_t>(i)].chosen_experts();
  const int chosen_experts = spec.layer_specs[static_cast<size_t>(layer)].chosen_experts();
  const size_t count = static_cast<size_t>(rows_ * chosen_experts);
  model_.execution.stream->download(ws_.host_experts.data() + before * rows_, chosen,
                                    count * sizeof(int32_t));
}

std::span<const int32_t> Hooks::experts() const {
  if (!batch_.wants_experts) return {};
  return {ws_.host_experts.data(), static_cast<size_t>(rows_ * routed_columns(model_.spec))};
}

void Hooks::after_layer(int layer) const {
  const auto& layers = batch_.aux_layers;
  const auto it = std::find(layers.begin(), layers.end(), layer);
  if (it == layers.end()) return;
  const size_t values = static_cast<size_t>(rows_ * model_.spec.hidden);
  model_.execution.stream->download(ws_.host_aux_hidden.data() + (it - layers.begin()) * values,
                                    ws_.hidden.data(), values * sizeof(float));
}

std::span<const float> Hooks::aux_hidden() const {
  return {ws_.host_aux_hidden.data(),
          batch_.aux_layers.size() * static_cast<size_t>(rows_ * model_.spec.hidden)};
}

void Hooks::trace(std::string_view name, int layer, const float* values, int64_t width,
                  int64_t rows, const int32_t* rows_of) const {
  if (io_.trace) record({name, layer, nullptr, rows, width, width, rows_of}, values, DType::f32);
}

void Hooks::trace(std::string_view name, int layer, const Activation& x, int64_t width,
                  int64_t rows, const int32_t* rows_of) const {
  if (io_.trace) record({name, layer, nullptr, rows, width, x.stride, rows_of}, x.data, x.type);
}

// Not for warm steps: waits for the device, and widens.
void Hooks::record(TracedOp op, const void* values, DType type) const {
  std::vector<std::byte> raw(op.rows * op.stride * size_of(type));
  model_.device().download(raw.data(), values, raw.size());
  std::vector<float> wide(op.rows * op.stride);
  for (size_t i = 0; i < wide.size(); ++i)
    wide[i] = type == DType::bf16 ? bf16_to_f32(reinterpret_cast<const bf16_t*>(raw.data())[i])
                                  : reinterpret_cast<const float*>(raw.data())[i];
  op.values = wide.data();
  io_.trace->record(op);
}

}  // namespace invar
