// Grids of grid.cuh that may start before the kernels before them are done: their kernels begin
// with take_turn(), or wait before they read what those wrote.
#pragma once

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/tma.cuh"

namespace invar::cuda {

inline LaunchShape early_grid(int blocks) {
  return {.blocks = blocks, .threads = kThreads, .shared_bytes = 0, .early = true};
}

// The next kernel may start; what the kernels before wrote is there afterwards.
__device__ __forceinline__ void take_turn() {
  let_next_kernel_start();
  wait_for_kernels_before();
}

}  // namespace invar::cuda
