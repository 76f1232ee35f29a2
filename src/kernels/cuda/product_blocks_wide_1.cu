// Products of 9 to 64 rows by blocks (product_blocks_wide.cuh) of these types; files of others
// compile beside.
#include "kernels/cuda/product_blocks_wide.cuh"

namespace invar::cuda {

template void wide_blocks_matmul<DType::q8_0>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::q8_0>(const GatedMatmulParams&, const Execution&);
template void wide_blocks_matmul<DType::q4_0>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::q4_0>(const GatedMatmulParams&, const Execution&);
template void wide_blocks_matmul<DType::q4_k>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::q4_k>(const GatedMatmulParams&, const Execution&);
template void wide_blocks_matmul<DType::iq4_nl>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::iq4_nl>(const GatedMatmulParams&, const Execution&);

}  // namespace invar::cuda
