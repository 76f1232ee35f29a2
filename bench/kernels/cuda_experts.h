// Products of experts on the widths of Qwen3-30B-A3B, beside cuBLAS expert by expert.
#pragma once

#include "cuda_timer.h"
#include "device/cuda/cublas.h"

namespace invar::bench {

// `rows` tokens, each through 8 of 128 experts, which get equally many.
void bench_experts(Device& gpu, GpuTimer& timer, cuda::Cublas& cublas, int64_t rows);

}  // namespace invar::bench
