#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/row_functions.h"
// in this order
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/elementwise_inl.h"

namespace invar::cpu {

const RowFunctions kAvx512Rows = {rms_norm,  layer_norm,  curve,        scale_logits,
                                  scale,     add_scaled,  rotated_head, query,
                                  key_value, sum_experts, logits,       gate_pairs};

}  // namespace invar::cpu
