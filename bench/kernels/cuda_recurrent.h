// The operations between the products of a layer with a state: Qwen3-Next's and Qwen3.5's shape, a
// gated delta rule of 16 key heads and 32 value heads of 128 elements.
#pragma once

#include "cuda_timer.h"

namespace invar::bench {

// So many sequences, each with so many rows from position `begin` on.
void bench_recurrent(Device& gpu, GpuTimer& timer, int32_t sequences, int32_t rows, int32_t begin);

}  // namespace invar::bench
