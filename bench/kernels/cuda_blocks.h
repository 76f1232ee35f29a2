// Products of few rows by weights in 8 and 4 bits beside those by bf16.
#pragma once

#include "cuda_timer.h"

namespace invar::bench {

// The layers of Qwen3-8B by bf16, q8_0, q4_0, q4_k and integers of numerics 2.1 (with what makes
// integers of their rows left out): microseconds, and bytes of weights a second.
void bench_blocks(Device& gpu, GpuTimer& timer, int64_t rows);

}  // namespace invar::bench
