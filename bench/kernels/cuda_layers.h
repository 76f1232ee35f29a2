// Where the time of a step's layers goes on a GPU.
#pragma once

#include <cstdint>

#include "cuda_timer.h"

namespace invar::bench {

// Prints, for a chain of layers of Qwen3-8B's shape: its time; for each operation the time of a
// chain of it alone, what the whole gains when it is left out, and for products cuBLAS's time, all
// in microseconds for a layer. `prompt`: `rows` rows that end at `context`; else as many sequences
// of that length.
void bench_layers(Device& gpu, GpuTimer& timer, int64_t rows, int64_t context, bool prompt);

}  // namespace invar::bench
