#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/row_functions.h"

namespace invar::cpu {

namespace {

#include "kernels/cpu/vec16_avx2.h"

#include "kernels/cpu/vec16_math.h"

#include "kernels/cpu/elementwise_inl.h"

}  // namespace

const RowFunctions kAvx2Rows = {rms_norm, query, key_value, logits};

}  // namespace invar::cpu
