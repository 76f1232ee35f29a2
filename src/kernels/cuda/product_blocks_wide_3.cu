// As product_blocks_wide_1.cu, of other types.
#include "kernels/cuda/product_blocks_wide.cuh"

namespace invar::cuda {

template void wide_blocks_matmul<DType::q5_1>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::q5_1>(const GatedMatmulParams&, const Execution&);
template void wide_blocks_matmul<DType::q2_k>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::q2_k>(const GatedMatmulParams&, const Execution&);
template void wide_blocks_matmul<DType::q3_k>(const MatmulParams&, const Execution&);
template void wide_blocks_gated<DType::q3_k>(const GatedMatmulParams&, const Execution&);

}  // namespace invar::cuda
