// Descriptions of arrays for TMA. The driver's library is reached through the runtime: a machine
// without a driver runs this program, too.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "numerics/storage.h"

namespace invar::cuda {

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found),
             "asking its driver for tensor maps");
  if (found != cudaDriverEntryPointSuccess)
    fail("the NVIDIA driver does not know tensor maps; update the driver");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const void* data, DType type, int dims, const uint64_t* sizes,
                       const uint64_t* strides, const uint32_t* box, bool is_swizzled) {
  static const Encode encode = find_encode();
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t));
  const cuuint32_t every[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  // The L2 cache keeps subnormals in sums of plain f32; with FTZ its bits are the CPU's.
  const CUresult status = encode(
      &map,
      type == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      static_cast<cuuint32_t>(dims), const_cast<void*>(data),
      reinterpret_cast<const cuuint64_t*>(sizes), reinterpret_cast<const cuuint64_t*>(strides), box,
      every, CU_TENSOR_MAP_INTERLEAVE_NONE,
      is_swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail("the NVIDIA driver refused a tensor map of {} dimensions, {} x {} elements: error {}",
         dims, sizes[0], sizes[1], static_cast<int>(status));
  return map;
}

}  // namespace invar::cuda
