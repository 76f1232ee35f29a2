#include "device/cuda/gpu.h"

#include <cuda_runtime_api.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "device/cuda/cublas.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

namespace invar {

Gpu::Gpu(int ordinal) : ordinal_(ordinal) {
  cuda_check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal),
             "asking for its multiprocessors");
}

Gpu::~Gpu() = default;

void Gpu::make_current() const {
  cuda_check(cudaSetDevice(ordinal_), "choosing the GPU");
}

void Gpu::try_to_make_current() const {
  cudaSetDevice(ordinal_);
}

void Gpu::allow_shared(const void* kernel, int bytes) const {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> allowed;
  const std::lock_guard lock(mutex);
  int& most = allowed[{ordinal_, kernel}];
  if (bytes <= most) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "reserving shared memory");
  most = bytes;
}

cuda::Cublas& Gpu::cublas() {
  const std::lock_guard lock(mutex_);
  if (!cublas_) {
    make_current();
    cublas_ = std::make_unique<cuda::Cublas>();
  }
  return *cublas_;
}

Gpu& gpu_of(const Execution& on) {
  CHECK(on.stream, "work for a GPU needs one of its streams");
  return static_cast<const CudaStream*>(on.stream)->gpu();
}

}  // namespace invar
