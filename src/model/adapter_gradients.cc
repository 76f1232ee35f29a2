#include "model/adapter_gradients.h"

#include <algorithm>

#include "base/check.h"
#include "weights/peft_adapter.h"

namespace invar {

namespace {

// Outputs [output, output + count) are rows of a module's B from `stored` on.
struct AdapterRows {
  int64_t stored, output, count;
};

std::vector<AdapterRows> runs_of(const std::function<int64_t(int64_t)>& row, int64_t outputs) {
  if (!row) return {{0, 0, outputs}};
  std::vector<AdapterRows> runs;
  for (int64_t i = 0; i < outputs; ++i) {
    if (!runs.empty() && row(i) == runs.back().stored + runs.back().count)
      ++runs.back().count;
    else
      runs.push_back({row(i), i, 1});
  }
  return runs;
}

// Outputs of one tensor in a row of all of its product's.
Columns columns_of(const AdapterOutputs& of, const AdapterRows& rows) {
  if (of.step == 1) return {of.output + rows.output, rows.count};
  CHECK(rows.count == of.b.n, "a matrix of a pair whose rows stand apart");
  return {0, of.b.n, static_cast<int>(of.output / kPanelWidth)};
}

// A row of a product's outputs: those of a gated pair take turns.
int64_t row_of_outputs(const Matrix& w) {
  return w.count * (w.count > 1 ? round_up(w.n, kPanelWidth) : w.n);
}

int64_t offset_of(const std::map<std::string, int64_t>& offsets, const std::string& name) {
  const auto found = offsets.find(name);
  CHECK(found != offsets.end(), "an adapter whose tensors are not in the layout");
  return found->second;
}

}  // namespace

AdapterGradients::AdapterGradients(const Decoder& decoder, const AdapterWeights& weights,
                                   const ParameterLayout& layout, int max_rows) {
  std::map<std::string, int64_t> offsets;
  for (const ParameterLayout::Slot& slot : layout.slots()) offsets[slot.tensor.name] = slot.offset;
  int64_t width = 0;
  for (const auto& [data, product] : weights.products()) {
    width = std::max(width, product.a.n);
    add(decoder, product, offsets);
  }
  place_chains(layout.gradient_size());
  const auto values = static_cast<size_t>(max_rows * width);
  sums_ = {decoder.device(), values, "an adapter's backward pass"};
  inner_ = {decoder.device(), values, "an adapter's backward pass"};
  d_inner_ = {decoder.device(), values, "an adapter's backward pass"};
}

void AdapterGradients::add(const Decoder& decoder, const AdapterWeights::Product& product,
                           const std::map<std::string, int64_t>& offsets) {
  Product& to = products_[product.w.data];
  to = {&product,
        placed(decoder, product.a.k, product.a.n),
        placed(decoder, product.a.n, row_of_outputs(product.w)),
        {}};
  for (size_t i = 0; i < product.outputs.size(); ++i) {
    const AdapterOutputs& of = product.outputs[i];
    Tensor& tensor =
        to.tensors.emplace_back(Tensor{.a = offset_of(offsets, peft_name(product.modules[i], 'A')),
                                       .b = offset_of(offsets, peft_name(product.modules[i], 'B')),
                                       .rank = of.b.k,
                                       .inner = {of.inner, of.b.k},
                                       .inputs = product.a.k,
                                       .rows = {},
                                       .chain = -1});
    for (const AdapterRows& rows : runs_of(product.rows[i], of.b.n))
      tensor.rows.push_back({rows.stored * of.b.k, columns_of(of, rows)});
  }
}

// Tensors with one A follow each other as their rows stand in its B.
void AdapterGradients::place_chains(int64_t behind) {
  std::vector<Tensor*> all;
  for (auto& [data, product] : products_)
    for (Tensor& tensor : product.tensors) all.push_back(&tensor);
  std::ranges::sort(all, {}, [](const Tensor* t) { return std::pair(t->a, t->rows[0].first); });
  int64_t before = -1;
  for (Tensor* tensor : all) {
    tensor->chain = tensor->a;
    if (tensor->a == before) {
      const int64_t count = tensor->rank * tensor->inputs;
      tensor->chain = behind + later_size_;
      later_uses_.push_back({tensor->chain, tensor->a, count});
      later_size_ += round_up(count, kPanelWidth);
    }
    before = tensor->a;
  }
}

Matrix AdapterGradients::placed(const Decoder& decoder, int64_t n, int64_t k) {
  Matrix w{.type = DType::bf16, .n = n, .k = k, .layout = decoder.kernels.weights};
  memory_.emplace_back(decoder.device(), static_cast<size_t>(w.elements()),
                       "an adapter's transposed weights");
  w.data = memory_.back().data();
  return w;
}

void AdapterGradients::update(const bf16_t* numbers, const TrainingKernels& kernels,
                              const Execution& on) {
  const auto pack = [&](const bf16_t* x, int64_t rows, int64_t width, Columns inner, Matrix to,
                        int64_t first) {
    const int64_t before = first / kPanelWidth * to.panel_elements();
    on.run(kernels.pack_columns,
           PackColumnsParams{.x = x,
                             .x_stride = width,
                             .rows = rows,
                             .width = width,
                             .inner = inner,
                             .inner_size = to.k,
                             .out = static_cast<bf16_t*>(const_cast<void*>(to.data)) + before,
                             .layout = to.layout});
  };
  for (const auto& [data, product] : products_)
    for (const Tensor& tensor : product.tensors) {
      pack(numbers + tensor.a, tensor.rank, tensor.inputs, tensor.inner, product.a, 0);
      for (const auto& [first, outputs] : tensor.rows)
        pack(numbers + tensor.b + first, outputs.count, tensor.rank, outputs, product.b,
             tensor.inner.first);
    }
}

const AdapterGradients::Product* AdapterGradients::beside(const Matrix& w) const {
  const auto found = products_.find(w.data);
  return found == products_.end() ? nullptr : &found->second;
}

}  // namespace invar
