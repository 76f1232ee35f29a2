// As product_blocks_1.cu, of other types.
#include "kernels/cuda/product_blocks.cuh"

namespace invar::cuda {

template void few_blocks_matmul<DType::q5_1>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q5_1>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q2_k>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q2_k>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q3_k>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q3_k>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);

}  // namespace invar::cuda
