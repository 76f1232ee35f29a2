// Products by weights in 8 and 4 bits beside those by bf16.
#pragma once

#include <string_view>

#include "cuda_timer.h"

namespace invar::bench {

// The layers of Qwen3-8B, or `only` one, by bf16, q8_0, q4_0, q4_k, integers of numerics 2.1, of
// rows that are integers and of rows that become them in the product, and e4m3 numbers of 2.2 of
// rows that are such numbers: microseconds, and bytes of weights a second.
void bench_blocks(Device& gpu, GpuTimer& timer, int64_t rows, std::string_view only);

}  // namespace invar::bench
