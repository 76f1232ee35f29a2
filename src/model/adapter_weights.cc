#include "model/adapter_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "kernels/pack.h"
#include "model/families/family_source.h"
#include "model/families/tensor_table.h"
#include "weights/peft_adapter.h"

namespace invar {

namespace {

using enum TensorRole;

// Matrices whose products go by Operations::product, add_product and gated_product: everywhere, and
// on CPUs alone.
constexpr TensorRole kEverywhere[] = {q, k, v, q_gate, o, gate, up, down};
constexpr TensorRole kOnCpus[] = {recurrent_q,     recurrent_k,      recurrent_v, recurrent_gate,
                                  recurrent_decay, recurrent_factor, decay_down,  gate_down,
                                  recurrent_o,     conv_factor,      conv_gate,   conv_input,
                                  conv_o,          shared_gate,      shared_up,   shared_down};
// Those among them whose products have a backward with adapters.
constexpr TensorRole kTrained[] = {recurrent_q,     recurrent_k,      recurrent_v, recurrent_gate,
                                   recurrent_decay, recurrent_factor, decay_down,  gate_down,
                                   recurrent_o,     conv_factor,      conv_gate,   conv_input,
                                   conv_o};
// On CPUs alone as well, expert by expert.
constexpr TensorRole kOfExperts[] = {expert_gate, expert_up, expert_down};

// A tensor of the decoder that an adapter has something for, which rows of B are its own, and what
// the family multiplies the matrix by.
struct Target {
  const AdapterModule* module;
  std::function<int64_t(int64_t)> row;  // empty: as they are
  float scale = 1;
};
using Targets = std::map<std::string, Target>;

bool is_of_expert(const StoredTensor& stored) {
  return std::ranges::count(kOfExperts, stored.parts[0].of.role) > 0;
}

bool is_adaptable(const StoredTensor::Part& part, const DecoderSpec& spec, AdapterUser user) {
  const TensorRole role = part.of.role;
  if (part.of.layer >= spec.layers || part.at.is_transposed) return false;
  if (std::ranges::count(kEverywhere, role) > 0) return true;
  if (user == AdapterUser::trainer) return std::ranges::count(kTrained, role) > 0;
  if (user != AdapterUser::cpu) return false;
  if (std::ranges::count(kOfExperts, role) > 0)
    return !spec.layer(part.of.layer).experts()->has_biases;
  return std::ranges::count(kOnCpus, role) > 0;
}

bool is_adaptable(const StoredTensor& stored, const DecoderSpec& spec, AdapterUser user) {
  return std::ranges::all_of(
      stored.parts, [&](const StoredTensor::Part& part) { return is_adaptable(part, spec, user); });
}

const char* adaptable_to(AdapterUser user) {
  return user == AdapterUser::cpu
             ? "q, k, v, o, gate, up or down of a layer or of its experts, or a projection of its "
               "heads with a state"
         : user == AdapterUser::trainer
             ? "q, k, v, o, gate, up or down of a layer, or a projection of its heads with a state"
             : "q, k, v, o, gate, up or down of a layer";
}

void expect_adapted(const LoraAdapter& adapter, const AdapterModule& module,
                    const StoredTensor& stored, const DecoderSpec& spec, AdapterUser user) {
  if (!is_adaptable(stored, spec, user))
    fail("{}: adapters of {} are not computed{}; expected {}", adapter.path(),
         json::quoted(module.name),
         user == AdapterUser::gpu && is_adaptable(stored, spec, AdapterUser::cpu) ? " on GPUs" : "",
         adaptable_to(user));
  if (stored.shape != std::vector<int64_t>{module.outputs, module.inputs})
    fail("{}: expected an adapter of {} for [{}], found one for [{}, {}]", adapter.path(),
         json::quoted(module.name), fmt::join(stored.shape, ", "), module.outputs, module.inputs);
  const int64_t experts =
      module.experts ? spec.layer(stored.parts[0].of.layer).experts()->routing.experts : 0;
  if (module.experts != experts)
    fail(
        "{}: expected an adapter of each of {} experts, found one for {} experts in the stack of "
        "{}",
        adapter.path(), experts, module.experts, json::quoted(module.name));
}

// Tensors by their names in the model's files; where these hold the matrices of all experts in one
// tensor, each expert's by the decoder's name.
std::map<std::string, StoredTensor> tensors_by_name(const LoraAdapter& adapter,
                                                    const DecoderSpec& spec) {
  std::map<std::string, StoredTensor> by_name;
  for (StoredTensor& tensor : adapter.has_gguf_names() ? gguf_tensors(spec) : stored_tensors(spec))
    by_name[tensor.name] = std::move(tensor);
  for (TensorSpec& tensor : tensors_of(spec))
    if (std::ranges::count(kOfExperts, tensor.role) > 0)
      by_name.try_emplace(tensor.name,
                          StoredTensor{tensor.name, tensor.shape, {{tensor, {tensor.name}}}});
  return by_name;
}

Targets targets_of(const LoraAdapter& adapter, const DecoderSpec& spec, AdapterUser user) {
  const std::map<std::string, StoredTensor> by_name = tensors_by_name(adapter, spec);
  Targets targets;
  for (const AdapterModule& module : adapter.modules()) {
    const auto found = by_name.find(without_tower(module.name) + ".weight");
    if (found == by_name.end())
      fail("{}: expected modules of the {} model that is served, found {}", adapter.path(),
           spec.family, json::quoted(module.name));
    expect_adapted(adapter, module, found->second, spec, user);
    for (const StoredTensor::Part& part : found->second.parts)
      if (!targets.try_emplace(part.of.name, Target{&module, part.at.row, part.at.scale}).second)
        fail("{}: expected one adapter of a matrix, found {} for one that has another",
             adapter.path(), json::quoted(module.name));
  }
  return targets;
}

// One tensor of a product that an adapter has something for.
struct AdaptedRow {
  const TensorRow* row;
  const Target* target;
  PackPlace place;
  int64_t inner = 0;
};

// Every matrix of a model that is a module's weight.
template <typename Use>
void for_modules(const DecoderSpec& spec, Use use) {
  constexpr std::string_view kWeight = ".weight";
  for (const StoredTensor& stored : stored_tensors(spec))
    if (stored.name.ends_with(kWeight) && stored.shape.size() == 2)
      use(stored, AdapterModule{.name = stored.name.substr(0, stored.name.size() - kWeight.size()),
                                .inputs = stored.shape[1],
                                .outputs = stored.shape[0],
                                .a = {},
                                .b = {}});
}

}  // namespace

std::vector<AdapterModule> adaptable_modules(const DecoderSpec& spec, AdapterUser user) {
  std::vector<AdapterModule> modules;
  for_modules(spec, [&](const StoredTensor& stored, AdapterModule module) {
    if (is_adaptable(stored, spec, user)) modules.push_back(std::move(module));
  });
  return modules;
}

int64_t most_adapter_bytes(const DecoderSpec& spec, AdapterUser user, DType type, int64_t rank) {
  int64_t elements = 0;
  for_modules(spec, [&](const StoredTensor& stored, const AdapterModule& module) {
    if (!is_adaptable(stored, spec, user) || is_of_expert(stored)) return;
    const auto parts = std::ssize(stored.parts);  // each with an A of its own
    elements += parts * Matrix{.n = round_up(rank, kLeafPad), .k = module.inputs}.elements() +
                Matrix{.n = module.outputs, .k = rank}.elements();
  });
  return elements * size_of(type);
}

std::vector<AdapterModule> target_modules(const DecoderSpec& spec,
                                          const std::vector<std::string>& names) {
  std::vector<AdapterModule> modules;
  std::vector<bool> has_any(names.size());
  for_modules(spec, [&](const StoredTensor& stored, AdapterModule module) {
    bool is_target = false;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool is_meant = names[i] == kAllLinear ? stored.parts[0].of.layer >= 0
                                                   : is_module_named(module.name, names[i]);
      if (is_meant) is_target = has_any[i] = true;
    }
    if (!is_target) return;
    if (!is_adaptable(stored, spec, AdapterUser::trainer))
      fail("adapters of {} are not trained; expected {}", json::quoted(module.name),
           adaptable_to(AdapterUser::trainer));
    modules.push_back(std::move(module));
  });
  for (size_t i = 0; i < names.size(); ++i)
    if (!has_any[i])
      fail("expected modules of the {} model as targets of an adapter, found {}", spec.family,
           json::quoted(names[i]));
  return modules;
}

void expect_fits(const LoraAdapter& adapter, const DecoderSpec& spec, AdapterUser user) {
  targets_of(adapter, spec, user);
}

// Visits the loaded weights: once to see how much memory it takes, then to fill it.
class AdapterPacker : public TensorVisitor {
 public:
  AdapterPacker(AdapterWeights& out, const Decoder& decoder, const LoraAdapter& adapter)
      : out_(out),
        decoder_(decoder),
        adapter_(adapter),
        targets_(targets_of(adapter, decoder.spec,
                            decoder.device().is_host() ? AdapterUser::cpu : AdapterUser::gpu)) {}

  void pack() {
    visit();
    out_.memory_ = {decoder_.device(), static_cast<size_t>(taken_), "an adapter"};
    fill();
  }
  void fill() {
    if (!decoder_.device().is_host()) staged_.resize(out_.memory_.size());
    taken_ = 0;
    fills_ = true;
    visit();
    if (!staged_.empty())
      decoder_.device().upload(out_.memory_.data(), staged_.data(), staged_.size());
  }

  void vector(const float*&, const std::vector<TensorRow>&, const Each*) override {}
  void matrix(Matrix& w, const std::vector<TensorRow>& rows, MatrixForm form) override {
    if (!form.each) return add_rows(w, rows, form, -1);
    const int64_t size = form.is_pair ? 2 : 1;
    for (int64_t i = 0; i < std::ssize(form.each->here); ++i)
      add_rows(w.part(i * size, size), rows, form, form.each->here[static_cast<size_t>(i)]);
  }

 private:
  void visit() {
    for (layer_ = 0; layer_ < decoder_.spec.layers; ++layer_) {
      const size_t number = static_cast<size_t>(layer_);
      const LayerWeights& weights = decoder_.weights->layers()[number];
      for (size_t part = 0; part < weights.size(); ++part)
        decoder_.parts[number][part]->visit_tensors(*weights[part], *this);
    }
  }

  // Adds the adapters beside a matrix of these rows, an expert's or the layer's.
  void add_rows(const Matrix& w, const std::vector<TensorRow>& rows, const MatrixForm& form,
                int expert) {
    const Matrix* product = &w;  // that a row's tensor is in
    auto others = form.others ? std::span<const Matrix>(*form.others) : std::span<const Matrix>();
    std::vector<AdaptedRow> adapted;
    int64_t output = 0, inner = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!others.empty() && output == product->n) {
        add(*product, adapted, inner);
        adapted.clear();
        product = &others.front();
        others = others.subspan(1);
        output = inner = 0;
      }
      const PackPlace place =
          form.is_pair ? column_of_pair(w, static_cast<int64_t>(i)) : PackPlace{output};
      output += rows[i].rows.count;
      const auto found = targets_.find(tensor_name(rows[i], layer_, expert));
      if (found == targets_.end()) continue;
      adapted.push_back({&rows[i], &found->second, place, inner});
      inner += round_up(found->second.module->rank, kLeafPad);
    }
    add(*product, adapted, inner);
  }

  Matrix placed(int64_t n, int64_t k) {
    Matrix w{.type = decoder_.arithmetic.weights, .n = n, .k = k, .layout = WeightLayout::panels};
    w.data = out_.memory_.data() ? out_.memory_.data() + taken_ : nullptr;
    taken_ += round_up(w.bytes(), 64);
    return w;
  }

  void add(const Matrix& beside, const std::vector<AdaptedRow>& rows, int64_t inner) {
    if (rows.empty()) return;
    AdapterWeights::Product product{beside, placed(inner, rows[0].row->columns.count), {}, {}, {}};
    for (const AdaptedRow& row : rows) {
      const AdapterModule& module = *row.target->module;
      product.outputs.push_back({.b = placed(row.row->rows.count, module.rank),
                                 .scale = static_cast<float>(module.scale * row.target->scale),
                                 .inner = row.inner,
                                 .output = row.place.output,
                                 .step = row.place.step});
      product.modules.push_back(module.name);
      product.rows.push_back(row.target->row);
      if (fills_) fill(row, product.a, product.outputs.back().b);
    }
    if (fills_) out_.products_[beside.data] = std::move(product);
  }

  // A's columns and B's rows that are this rank's.
  void fill(const AdaptedRow& row, const Matrix& a, const Matrix& b) {
    const AdapterModule& module = *row.target->module;
    read(module.a, 0, module.rank);
    send(a, row.row->columns.first, module.inputs, module.rank, {row.inner});
    const TensorAxis& outputs = row.row->rows;
    const auto& stored_row = row.target->row;
    if (!stored_row) {
      read(module.b, outputs.first, outputs.count);
    } else {
      rows_.clear();
      for (int64_t i = 0; i < outputs.count; ++i)
        append(module.b, stored_row(outputs.first + i), 1);
    }
    send(b, 0, module.rank, outputs.count, {});
  }

  void read(const std::string& tensor, int64_t first, int64_t count) {
    rows_.clear();
    append(tensor, first, count);
  }
  void append(const std::string& tensor, int64_t first, int64_t count) {
    const DType type = decoder_.arithmetic.weights;
    const int64_t row = bytes_of(type, adapter_.tensors().info(tensor).shape[1]);
    const size_t at = rows_.size();
    rows_.resize(at + static_cast<size_t>(count * row));
    adapter_.tensors().read_rows(tensor, first, count, type, rows_.data() + at);
  }

  // The rows that were read, `width` wide, from `column` on.
  void send(const Matrix& w, int64_t column, int64_t width, int64_t count, PackPlace place) {
    const std::byte* from = rows_.data() + bytes_of(w.type, column);
    auto* to = static_cast<std::byte*>(const_cast<void*>(w.data));
    if (!staged_.empty()) to = staged_.data() + (to - out_.memory_.data());
    pack_rows(w, from, width, 0, count, place, to);
  }

  AdapterWeights& out_;
  const Decoder& decoder_;
  const LoraAdapter& adapter_;
  const Targets targets_;
  bool fills_ = false;
  int64_t taken_ = 0;
  int layer_ = 0;
  std::vector<std::byte> rows_;
  std::vector<std::byte> staged_;  // what goes to a device whose memory the host cannot write
};

AdapterWeights::AdapterWeights(const Decoder& decoder, const LoraAdapter& adapter) {
  AdapterPacker(*this, decoder, adapter).pack();
}

void AdapterWeights::reload(const Decoder& decoder, const LoraAdapter& adapter) {
  AdapterPacker(*this, decoder, adapter).fill();
}

const AdapterWeights::Product* AdapterWeights::beside(const Matrix& w) const {
  const auto found = products_.find(w.data);
  return found == products_.end() ? nullptr : &found->second;
}

}  // namespace invar
