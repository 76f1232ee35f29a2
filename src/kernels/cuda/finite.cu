#include "kernels/cuda/finite.h"

#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 256, kBlocks = 1056;
constexpr unsigned long long kNone = ~0ull;

// The exponent is all ones.
template <typename Bits, Bits exponent>
__global__ void look(const Bits* values, int64_t count, unsigned long long* first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  unsigned long long mine = kNone;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    if ((values[i] & exponent) == exponent && mine == kNone)
      mine = static_cast<unsigned long long>(i);
  if (mine != kNone) atomicMin(first, mine);
}

void launch(const GpuValues& one, unsigned long long* first, cudaStream_t stream) {
  const auto* halves = static_cast<const uint16_t*>(one.data);
  if (one.type == DType::f32)
    look<uint32_t, 0x7f800000u><<<kBlocks, kThreads, 0, stream>>>(
        static_cast<const uint32_t*>(one.data), one.count, first);
  else if (one.type == DType::bf16)
    look<uint16_t, 0x7f80><<<kBlocks, kThreads, 0, stream>>>(halves, one.count, first);
  else
    look<uint16_t, 0x7c00><<<kBlocks, kThreads, 0, stream>>>(halves, one.count, first);
  cuda_launched("looking for NaNs");
}

}  // namespace

std::vector<int64_t> first_non_finite(Device& device, std::span<const GpuValues> all) {
  std::vector<unsigned long long> found(all.size(), kNone);
  const DeviceArray<unsigned long long> first(device, std::max<size_t>(1, all.size()),
                                              "the first NaNs");
  const auto stream = device.make_stream();
  device.upload(first.data(), found.data(), found.size() * sizeof(found[0]));
  for (size_t i = 0; i < all.size(); ++i)
    launch(all[i], first.data() + i, static_cast<CudaStream&>(*stream).use());
  stream->wait();
  device.download(found.data(), first.data(), found.size() * sizeof(found[0]));
  std::vector<int64_t> indices;
  for (const auto index : found)
    indices.push_back(index == kNone ? -1 : static_cast<int64_t>(index));
  return indices;
}

}  // namespace invar::cuda
