// Errors of the CUDA runtime as Error.
#pragma once

#include <cuda_runtime_api.h>

namespace invar {

// Throws Error, one sentence with `what` ("copying to the GPU"), unless status is success.
void cuda_check(cudaError_t status, const char* what);

// To be called after every launch: a launch that could not be made is reported here, a kernel that
// failed when its stream is waited for.
inline void cuda_launched(const char* kernel) {
  cuda_check(cudaGetLastError(), kernel);
}

}  // namespace invar
