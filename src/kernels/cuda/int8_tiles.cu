// Products of integers of many rows (numerics 2.1).
#include "kernels/cuda/byte_tiles.cuh"
#include "kernels/cuda/int8.h"

namespace invar::cuda {

void int8_tiles_matmul(const MatmulParams& p, const Execution& on) {
  p.split_k == 1 ? byte_tiles::tiles<Int8Kind>(p, p.w, on)
                 : byte_tiles::tiles_of_runs<Int8Kind>(p, on);
}

void int8_tiles_gated(const GatedMatmulParams& p, const Execution& on) {
  byte_tiles::tiles<Int8Kind>(p, p.gate_up, on);
}

}  // namespace invar::cuda
