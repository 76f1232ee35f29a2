// The digests of chunks of tensors (numerics 8) where a GPU's memory has them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "kernels/cuda/finite.h"

namespace invar::cuda {

// The SHA-256 of every `chunk` elements of each array, the last ones fewer, one array after the
// other. Arrays and their bytes are multiples of 4. Waits for the GPU.
std::vector<Digest> chunk_digests(Device& device, std::span<const GpuValues> all, int64_t chunk);

}  // namespace invar::cuda
