// Products of e4m3 numbers by rows, of many rows (numerics 2.5).
#include "kernels/cuda/byte_tiles.cuh"
#include "kernels/cuda/fp8.h"

namespace invar::cuda {

void fp8_row_tiles_matmul(const MatmulParams& p, const Execution& on) {
  p.split_k == 1 ? byte_tiles::tiles<Fp8RowKind>(p, p.w, on)
                 : byte_tiles::tiles_of_runs<Fp8RowKind>(p, on);
}

void fp8_row_tiles_gated(const GatedMatmulParams& p, const Execution& on) {
  byte_tiles::tiles<Fp8RowKind>(p, p.gate_up, on);
}

}  // namespace invar::cuda
