// Products of few rows by blocks (product_blocks.cuh) of these types; files of others compile
// beside.
#include "kernels/cuda/product_blocks.cuh"

namespace invar::cuda {

template void few_blocks_matmul<DType::q8_0>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q8_0>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q4_0>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q4_0>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::q4_k>(const MatmulParams&, const Execution&, const RowNorm&);
template void few_blocks_gated<DType::q4_k>(const GatedMatmulParams&, const Execution&,
                                            const RowNorm&);
template void few_blocks_matmul<DType::iq4_nl>(const MatmulParams&, const Execution&,
                                               const RowNorm&);
template void few_blocks_gated<DType::iq4_nl>(const GatedMatmulParams&, const Execution&,
                                              const RowNorm&);

}  // namespace invar::cuda
