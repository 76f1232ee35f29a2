// Stands in for kernels/cuda in a build without CUDA. There is no CUDA device then, so nothing here
// is ever run.
#include "base/check.h"
#include "kernels/cuda/at_once.h"
#include "kernels/cuda/baseline.h"
#include "kernels/cuda/chunk_digests.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/finite.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/torch_operators.h"

namespace invar::cuda {

Kernels kernels(Order) {
  CHECK(false, "this build has no CUDA kernels");
  return {};
}

Kernels baseline_kernels() {
  CHECK(false, "this build has no CUDA kernels");
  return {};
}

void pack_outputs(const PackOutputsParams&, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void widen(const WidenParams&, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void attention_sums(Order, const PartialAttentionParams&, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

TrainingKernels training_kernels(Order) {
  CHECK(false, "this build has no CUDA kernels");
  return {};
}

AtOnce at_once() {
  return {};
}

std::vector<int64_t> first_non_finite(Device&, std::span<const GpuValues>) {
  CHECK(false, "this build has no CUDA kernels");
  return {};
}

std::vector<Digest> chunk_digests(Device&, std::span<const GpuValues>, int64_t) {
  CHECK(false, "this build has no CUDA kernels");
  return {};
}

void check_hopper_steps(Device&) {
  CHECK(false, "this build has no CUDA kernels");
}

void check_hopper8_steps(Device&) {
  CHECK(false, "this build has no CUDA kernels");
}

void gate(const Values&, const Values&, int64_t, Nonlinearity, bf16_t*, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void gate_gradients(const GateGradients&, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void rounded(const Values&, int64_t, float*, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void place_rows(const PlacesParams&, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void mean(const float*, int64_t, int64_t, float*, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void spoil(const bool*, int64_t, bf16_t*, int64_t, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void clear_and_wait(void*, size_t, void*, size_t, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

void read(const void*, size_t, uint64_t*, const Execution&) {
  CHECK(false, "this build has no CUDA kernels");
}

}  // namespace invar::cuda
