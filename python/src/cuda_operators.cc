#include "cuda_operators.h"

#include <algorithm>

#include "device/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "operator_checks.h"

namespace invar::python {

namespace {

bool overlap(const Range& a, const Range& b) {
  const auto from = [](const Range& r) { return reinterpret_cast<uintptr_t>(r.begin); };
  return from(a) < from(b) + b.bytes && from(b) < from(a) + a.bytes;
}

Range range_of(const Matrix& w) {
  return {w.data, static_cast<size_t>(w.bytes())};
}
Range floats(const float* x, int64_t count) {
  return {x, x ? static_cast<size_t>(count) * sizeof(float) : 0};
}
Range range_of(const Activation& x, int64_t rows) {
  return {x.data, static_cast<size_t>(rows * x.stride * size_of(x.type))};
}

}  // namespace

bool CudaOperators::EarlyWrites::meet(uintptr_t stream, const std::vector<Range>& reads) const {
  const auto found = of_.find(stream);
  if (found == of_.end()) return false;
  return found->second.size() > kMost || std::ranges::any_of(found->second, [&](const Range& one) {
           return std::ranges::any_of(reads, [&](const Range& read) { return overlap(one, read); });
         });
}

CudaOperators::CudaOperators(const std::string& order, int gpu)
    : gpu_(gpu),
      device_(make_cuda_device(gpu)),
      kernels_(cuda::kernels(order_of(order))),
      training_(cuda::training_kernels(order_of(order))) {
  if (kernels_.order == Order::hopper) cuda::check_hopper_steps(*device_);
}

void CudaOperators::wait_if_written(uintptr_t stream, const std::vector<Range>& reads,
                                    const Execution& on) {
  if (!early_.meet(stream, reads)) return;
  cuda::clear_and_wait(nullptr, 0, nullptr, 0, on);
  early_.forget(stream);
}

void CudaOperators::matmul(uintptr_t stream, const MatmulParams& p) {
  on(stream, [&](const Execution& execution) {
    wait_if_written(stream, {range_of(p.w), floats(p.bias, p.w.n)}, execution);
    kernels_.matmul(p, execution);
    early_.add(stream, floats(p.y, (p.rows - 1) * p.y_stride + p.w.n));
  });
}

void CudaOperators::gated_matmul(uintptr_t stream, const GatedMatmulParams& p) {
  on(stream, [&](const Execution& execution) {
    const int64_t n = p.gate_up.n;
    wait_if_written(stream, {range_of(p.gate_up), floats(p.gate_bias, n), floats(p.up_bias, n)},
                    execution);
    kernels_.gated_matmul(p, execution);
    early_.add(stream, range_of(p.out, p.rows));
  });
}

void CudaOperators::rms_norm(uintptr_t stream, const RmsNormParams& p) {
  on(stream, [&](const Execution& execution) {
    wait_if_written(stream, {floats(p.weight, p.width)}, execution);
    kernels_.rms_norm(p, execution);
    early_.add(stream, range_of(p.out, p.rows));
  });
}

void CudaOperators::attention(uintptr_t stream, const CudaAttention& p) {
  on(stream, [&](const Execution& execution) {
    const int64_t rows = p.rotation.rows;
    // The beginning of the scratch memory is zero between calls; this is the first one.
    const size_t zeros = p.of.scratch ? cuda::kAttentionZeros : 0;
    cuda::clear_and_wait(p.rotation.non_finite, static_cast<size_t>(rows), p.of.scratch, zeros,
                         execution);
    early_.forget(stream);
    kernels_.qkv(p.rotation, execution);
    kernels_.attention(p.of, execution);
    cuda::spoil(p.rotation.non_finite, rows, static_cast<bf16_t*>(p.of.out.data),
                rows * p.of.out.stride, execution);
  });
}

void CudaOperators::round(uintptr_t stream, const RoundParams& p) {
  wait_and_run(stream, kernels_.round, p);
}
void CudaOperators::embed(uintptr_t stream, const EmbedParams& p) {
  wait_and_run(stream, kernels_.embed, p);
}
void CudaOperators::rope(uintptr_t stream, const RotateHeadsParams& p) {
  wait_and_run(stream, kernels_.rotate_heads, p);
}
void CudaOperators::log_sum_exp(uintptr_t stream, const LogitsParams& p) {
  wait_and_run(stream, kernels_.log_sum_exp, p);
}

void CudaOperators::rounded(uintptr_t stream, const cuda::Values& x, int64_t count, float* out) {
  on(stream, [&](const Execution& execution) { cuda::rounded(x, count, out, execution); });
}

void CudaOperators::place_rows(uintptr_t stream, const cuda::PlacesParams& p) {
  on(stream, [&](const Execution& execution) { cuda::place_rows(p, execution); });
}

void CudaOperators::gate(uintptr_t stream, const cuda::Values& g, const cuda::Values& u,
                         int64_t count, Nonlinearity curve, bf16_t* out) {
  on(stream, [&](const Execution& execution) { cuda::gate(g, u, count, curve, out, execution); });
}

void CudaOperators::gate_gradients(uintptr_t stream, const cuda::GateGradients& p) {
  on(stream, [&](const Execution& execution) {
    cuda::gate_gradients(p, execution);
    early_.forget(stream);
  });
}

void CudaOperators::attention_backward(uintptr_t stream, const CudaAttentionBackward& p) {
  on(stream, [&](const Execution& execution) {
    const int64_t rows = p.rotation.rows;
    cuda::clear_and_wait(p.rotation.non_finite, static_cast<size_t>(rows), nullptr, 0, execution);
    early_.forget(stream);
    kernels_.qkv(p.rotation, execution);
    const AttentionBackwardParams& a = p.attention;
    cuda::attention_sums(
        kernels_.order,
        {.of = a.forward, .max = const_cast<float*>(a.max), .sum = const_cast<float*>(a.sum)},
        execution);
    training_.attention_backward(a, execution);
    training_.qkv_backward(p.heads, execution);
  });
}

void CudaOperators::mean(uintptr_t stream, const float* x, int64_t rows, int64_t width,
                         float* out) {
  on(stream, [&](const Execution& execution) { cuda::mean(x, rows, width, out, execution); });
}

}  // namespace invar::python
