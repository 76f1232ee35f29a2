// The rows that experts read.
#pragma once

#include "kernels/cuda/experts.cuh"

namespace invar::cuda {

// Row t of x to place j, by all threads of a block.
__device__ __forceinline__ void copy_row(const GatherRowsParams& p, int64_t t, int64_t j) {
  const int64_t size = p.x.type == DType::bf16 ? 2 : 4;
  const auto* from =
      reinterpret_cast<const uint4*>(static_cast<const char*>(p.x.data) + t * p.x.stride * size);
  auto* to = reinterpret_cast<uint4*>(static_cast<char*>(p.out.data) + j * p.out.stride * size);
  const int count = static_cast<int>(round_up(p.width, kLeafPad) * size / sizeof(uint4));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    to[i] = from[i];
}

}  // namespace invar::cuda
