// As product_blocks_1.cu, of other types.
#include "kernels/cuda/product_blocks.cuh"

namespace invar::cuda {

template void few_blocks_matmul<DType::q5_k>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q5_k>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q6_k>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q6_k>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q4_1>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q4_1>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q5_0>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q5_0>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);

}  // namespace invar::cuda
