#include "model/workspace.h"

#include <algorithm>
#include <set>

#include "model/activation_memory.h"

namespace invar {

namespace {

// The windows of layers whose attention is in both directions, each once.
std::vector<int> windows_ahead(const DecoderSpec& spec) {
  std::set<int> windows;
  for (const LayerSpec& layer : spec.layer_specs)
    if (layer.attention() && layer.attention()->sees_ahead) windows.insert(layer.window());
  return {windows.begin(), windows.end()};
}

bool adds_apart(const DecoderSpec& spec) {
  return spec.residual_scale != 1 ||
         std::ranges::any_of(spec.layer_specs, [](const LayerSpec& layer) {
           return (layer.attention() && is_after(layer.attention()->norms)) ||
                  (layer.ffn() && is_after(layer.ffn()->norms));
         });
}

}  // namespace

Workspace::Workspace(const Decoder& decoder, int max_rows, int max_logit_rows, int max_aux_layers,
                     bool host_takes_logits)
    : max_rows(max_rows),
      max_logit_rows(max_logit_rows),
      max_aux_layers(max_aux_layers),
      branch(decoder.device()) {
  const DecoderSpec& spec = decoder.spec;
  const Shard& shard = decoder.weights->shard();
  Device& device = decoder.device();
  const char* what = "a step's activations";
  const size_t rows = static_cast<size_t>(max_rows);
  const DType type = decoder.arithmetic.activations();
  const auto activation = [&](DeviceArray<std::byte>& memory, int count, int64_t width) {
    const int64_t stride = activation_stride(width, decoder.kernels.weights);
    memory = {device, static_cast<size_t>(count * stride * size_of(type)), what};
    return Activation{memory.data(), type, stride};
  };

  hidden = {device, rows * spec.hidden, what};
  place_parts(decoder);
  final_normed = activation(normed, std::max(max_rows, max_logit_rows), spec.hidden);
  non_finite = {device, rows, what};
  if (decoder.kernels.attention_scratch)
    attention_scratch = {device, decoder.kernels.attention_scratch, what};
  if (decoder.kernels.blocks_scratch && decoder.weights->has_blocks())
    blocks_scratch = {device, decoder.kernels.blocks_scratch, what};
  if (decoder.weights->has_quantised()) place_quantised(decoder);
  logits = {device, size_t(max_logit_rows) * spec.vocab, what};
  const size_t feature_values = rows * static_cast<size_t>(features_of(spec.layer(0), spec.hidden));
  features = {device, feature_values, what};
  const int64_t inputs = decoder.weights->layer_inputs().width();
  const size_t input_values = rows * static_cast<size_t>(inputs);
  layer_inputs = {device, input_values, what};
  layer_contexts = {device, input_values, what};
  const auto is_beside = [](const LayerSpec& layer) { return layer.has_networks_beside(); };
  if (std::ranges::any_of(spec.layer_specs, is_beside)) beside = {device, rows * spec.hidden, what};
  if (shard.size > 1 || adds_apart(spec))
    partial = {device, rows * round_up(spec.hidden, kLeafPad), what};
  if (shard.size > 1) {
    rank_logits = {device, size_t(max_logit_rows) * shard.vocab_stride * (1 + shard.size), what};
  }

  if (find_indexer(spec)) chosen = ChosenSlots(device, spec, max_rows);

  host_non_finite = {device, rows, what};
  last_non_finite = {device, rows, what};
  host_nan_flags = {device, rows, what};
  host_aux_hidden = {device, rows * spec.hidden * max_aux_layers, what};
  host_experts = {device, rows * static_cast<size_t>(routed_columns(spec)), what};
  table_builder.see_ahead(windows_ahead(spec));
  if (device.is_host()) return;
  table_builder.find_shared(int64_t{heads_of(spec, {}, shard).kv_heads} * spec.head_dim);
  host_hidden = {device, rows * spec.hidden, what};
  host_features = {device, feature_values, what};
  if (host_takes_logits) host_logits = {device, size_t(max_logit_rows) * spec.vocab, what};
}

// A part's activations are free once it has run, so the parts use one piece of memory in turn.
// Activations that later parts read stay.
void Workspace::place_parts(const Decoder& decoder) {
  const auto place = [&](std::byte* memory) {
    int64_t most = 0;
    layers.clear();
    for (const LayerParts& parts : decoder.parts) {
      ActivationMemory taken({decoder.arithmetic, decoder.kernels.weights, max_rows}, memory);
      LayerActivations& layer = layers.emplace_back();
      int64_t kept = 0;
      for (const auto& part : parts) {
        taken.begin_part(kept);
        layer.push_back(part->place(taken));
        if (part->is_read_later()) kept = taken.bytes();
      }
      most = std::max(most, taken.most_bytes());
    }
    return static_cast<size_t>(most);
  };
  parts = {decoder.device(), place(nullptr), "a step's activations"};
  place(parts.data());
}

namespace {

// The widest input of a rank's products of integers or e4m3 numbers.
class WidestInput : public TensorVisitor {
 public:
  void vector(const float*&, const std::vector<TensorRow>&, const Each*) override {}
  void matrix(Matrix&, const std::vector<TensorRow>& rows, MatrixForm form) override {
    if (!form.takes_quantised) return;
    for (const TensorRow& row : rows) width = std::max(width, row.columns.count);
  }
  int64_t width = 0;
};

}  // namespace

// The widest of all inputs: rows of integers or e4m3 numbers, then their scales.
void Workspace::place_quantised(const Decoder& decoder) {
  WidestInput widest;
  widest.width = decoder.spec.hidden;
  for (const LayerParts& parts : decoder.parts)
    for (const auto& part : parts) part->visit_tensors(*part->make_weights(), widest);
  const int64_t width = widest.width;
  const int64_t stride = int8_stride(width, decoder.kernels.weights);
  const int64_t row_scales = std::max<int64_t>(
      kMostSplitK, scales_of_row(decoder.arithmetic.quantised, width, kMostSplitK));
  const size_t scales = static_cast<size_t>(max_rows * row_scales) * sizeof(RunScale);
  const size_t values = static_cast<size_t>(round_up(max_rows * stride, 64));
  quantised_bytes = {decoder.device(), values + scales, "a step's activations"};
  quantised = {quantised_bytes.data(), decoder.arithmetic.quantised, stride,
               reinterpret_cast<RunScale*>(quantised_bytes.data() + values)};
}

size_t Workspace::bytes() const {
  size_t total = 0;
  for (const DeviceArray<float>* array : {&hidden, &partial, &rank_logits, &logits, &features,
                                          &layer_inputs, &layer_contexts, &beside})
    total += array->size() * sizeof(float);
  for (const auto* array : {&parts, &normed, &attention_scratch, &blocks_scratch, &quantised_bytes})
    total += array->size();
  return total + chosen.bytes();
}

}  // namespace invar
