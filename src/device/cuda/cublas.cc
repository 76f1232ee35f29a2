#include "device/cuda/cublas.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace invar::cuda {

namespace {

constexpr size_t kWorkspaceBytes = 64 << 20;

// Where the linker looks (LD_LIBRARY_PATH), or where the toolkit is.
void* open_library(const std::string& name) {
  for (const std::string folder : {"", "/usr/local/cuda/lib64/"})
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
  return nullptr;
}

void* open_cublas() {
  open_library("libcublasLt.so.13");
  return open_library("libcublas.so.13");
}

template <typename Function>
Function function_of(void* library, const char* name) {
  void* function = dlsym(library, name);
  if (!function) fail("expected {} in cuBLAS, found none", name);
  return reinterpret_cast<Function>(function);
}

void check(int status, const char* what) {
  if (status != 0) fail("cuBLAS failed while {}: status {}", what, status);
}

}  // namespace

Cublas::Cublas() {
  void* library = open_cublas();
  if (!library) return;
  cuda_check(cudaMalloc(&workspace_, kWorkspaceBytes), "allocating cuBLAS's workspace");
  check(function_of<int (*)(void**)>(library, "cublasCreate_v2")(&handle_), "starting");
  set_stream_ = function_of<int (*)(void*, cudaStream_t)>(library, "cublasSetStream_v2");
  set_workspace_ = function_of<int (*)(void*, void*, size_t)>(library, "cublasSetWorkspace_v2");
  gemm_ = function_of<Gemm>(library, "cublasGemmEx");
}

Cublas::~Cublas() {
  cudaFree(workspace_);  // the library stays open, its handle with it: the program is about to end
}

void Cublas::multiply(const Product& p, cudaStream_t stream) {
  constexpr int kTransposed = 1, kAsItIs = 0, kF32 = 0, kBf16 = 14, kSumsInF32 = 68, kDefault = -1;
  const float one = 1, other = p.accumulate ? 1 : 0;
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  const std::lock_guard lock(mutex_);
  check(set_stream_(handle_, stream), "taking a stream");  // this forgets the workspace
  check(set_workspace_(handle_, workspace_, kWorkspaceBytes), "taking its workspace");
  check(gemm_(handle_, kTransposed, kAsItIs, narrow(p.n), narrow(p.rows), narrow(p.k), &one, p.w,
              kBf16, narrow(p.w_stride), p.x, kBf16, narrow(p.x_stride), &other, p.y,
              p.type == DType::bf16 ? kBf16 : kF32, narrow(p.y_stride), kSumsInF32, kDefault),
        "multiplying");
}

void Cublas::expect() {
  if (!open_cublas())
    fail("the arithmetic control takes its products from cuBLAS and libcublas.so.13 was not found");
}

}  // namespace invar::cuda
