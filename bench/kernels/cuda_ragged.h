// Attention of batches that decode behind contexts of any length, beside even batches of as many
// tokens.
#pragma once

#include "cuda_timer.h"

namespace invar::bench {

void bench_ragged(Device& gpu, GpuTimer& timer, int64_t sequences);

}  // namespace invar::bench
