// The backward of products with an adapter (numerics 9), beside what backward.cc has.
#include "kernels/adapters.h"
#include "model/backward_pass.h"

namespace invar {

// u = act(s A x) again, then d_u = dy * B and v = act(s d_u), which goes back to x.
void BackwardPass::adapter(const Matrix& w, const Activation& x, int split_k, const Activation& dy,
                           float* d_x, int64_t d_x_stride) {
  const AdapterGradients::Product* beside = io_.adapter ? io_.adapter->beside(w) : nullptr;
  if (!beside) return;
  const AdapterWeights::Product& forward = *beside->forward;
  const RowRun all{0, static_cast<int32_t>(rows_)};
  const AdapterGroup group{.a = forward.a,
                           .outputs = forward.outputs.data(),
                           .tensors = static_cast<int32_t>(forward.outputs.size()),
                           .runs = &all,
                           .num_runs = 1,
                           .rows = rows_};
  AdapterParams params{.groups = &group,
                       .num_groups = 1,
                       .x = x,
                       .split_k = split_k,
                       .sums = io_.adapter->sums(),
                       .sums_stride = forward.a.n,
                       .inner = io_.adapter->inner(*beside),
                       .matmul = model_.kernels.matmul};
  run("adapter A", model_.kernels.adapter_shrink, params);
  run("adapter round", model_.kernels.adapter_round, params);
  matmul("adapter dU", dy, beside->b, params.sums);
  params.inner = io_.adapter->d_inner(*beside);
  run("adapter round", model_.kernels.adapter_round, params);
  matmul("adapter dX", params.inner, beside->a, d_x, true, d_x_stride);
  adapter_gradients(*beside, x, dy);
}

// dB = dy^T u and dA = v^T x, tensor by tensor.
void BackwardPass::adapter_gradients(const AdapterGradients::Product& beside, const Activation& x,
                                     const Activation& dy) {
  const Activation u = io_.adapter->inner(beside), v = io_.adapter->d_inner(beside);
  pack(x, beside.forward->a.k, rows_);
  for (const AdapterGradients::Tensor& tensor : beside.tensors)
    extend_weight("adapter dA", gradient_at(tensor.chain), v, tensor.inner, tensor.inputs, rows_);
  for (const AdapterGradients::Tensor& tensor : beside.tensors) {
    Activation own = u;
    own.data = static_cast<bf16_t*>(u.data) + tensor.inner.first;
    pack(own, tensor.rank, rows_);
    for (const auto& [first, outputs] : tensor.rows)
      extend_weight("adapter dB", gradient_at(tensor.b) + first, dy, outputs, tensor.rank, rows_);
  }
}

}  // namespace invar
