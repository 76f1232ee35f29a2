#include "cuda_timer.h"

#include <dlfcn.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace invar::bench {

GpuTimer::GpuTimer(Device& gpu) : gpu_(gpu), owner_(gpu.make_stream()), stream_(stream_of(on())) {
  cuda_check(cudaEventCreate(&begin_), "making an event");
  cuda_check(cudaEventCreate(&end_), "making an event");
}

GpuTimer::~GpuTimer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

void GpuTimer::add(std::string name, const std::function<void(int)>& work, int calls) {
  work(0);  // what is done once is done before the capture
  cuda_check(cudaStreamSynchronize(stream_), "running what is to be measured");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < calls; ++i) work(i);
  cuda_check(cudaStreamEndCapture(stream_, &graph), "capturing");
  cuda_check(cudaGraphInstantiate(&executable, graph, 0), "capturing");
  cuda_check(cudaGraphDestroy(graph), "capturing");
  entries_.push_back({std::move(name), executable, calls, {}});
}

double GpuTimer::once(const Entry& entry) {
  cuda_check(cudaEventRecord(begin_, stream_), "measuring");
  cuda_check(cudaGraphLaunch(entry.graph, stream_), "measuring");
  cuda_check(cudaEventRecord(end_, stream_), "measuring");
  cuda_check(cudaEventSynchronize(end_), "measuring");
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "measuring");
  return ms * 1e3 / entry.calls;
}

std::vector<std::pair<std::string, double>> GpuTimer::run(int rounds) {
  std::vector<size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  uint32_t random = 12345;
  for (const Entry& entry : entries_) once(entry);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = order.size() - 1; i > 0; --i) {
      random = random * 1664525u + 1013904223u;
      std::swap(order[i], order[(random >> 8) % (i + 1)]);
    }
    for (const size_t i : order) entries_[i].us.push_back(once(entries_[i]));
  }
  std::vector<std::pair<std::string, double>> medians;
  for (Entry& entry : entries_) {
    std::ranges::sort(entry.us);
    medians.emplace_back(entry.name, entry.us[entry.us.size() / 2]);
    cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  return medians;
}

namespace {

// Where the linker looks (LD_LIBRARY_PATH), or where the toolkit is.
void* open_library(const std::string& name) {
  for (const std::string folder : {"", "/usr/local/cuda/lib64/"})
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
  return nullptr;
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

Cublas::Cublas(cudaStream_t stream) {
  open_library("libcublasLt.so.13");
  void* library = open_library("libcublas.so.13");
  if (!library) return;
  constexpr size_t kWorkspaceBytes = 64 << 20;
  cuda_check(cudaMalloc(&workspace_, kWorkspaceBytes), "allocating cuBLAS's workspace");
  check(function_of<int (*)(void**)>(library, "cublasCreate_v2")(&handle_), "starting");
  check(function_of<int (*)(void*, cudaStream_t)>(library, "cublasSetStream_v2")(handle_, stream),
        "starting");
  check(function_of<int (*)(void*, void*, size_t)>(library, "cublasSetWorkspace_v2")(
            handle_, workspace_, kWorkspaceBytes),
        "starting");
  gemm_ = function_of<Gemm>(library, "cublasGemmEx");
}

Cublas::~Cublas() {
  cudaFree(workspace_);  // the library stays open, its handle with it: the program is about to end
}

void Cublas::matmul(const void* x, const void* w, void* y, int64_t rows, int64_t n,
                    int64_t k) const {
  constexpr int kTransposed = 1, kAsItIs = 0, kBf16 = 14, kSumsInF32 = 68, kDefault = -1;
  const float one = 1, zero = 0;
  const int ks = static_cast<int>(k), ns = static_cast<int>(n);
  check(gemm_(handle_, kTransposed, kAsItIs, ns, static_cast<int>(rows), ks, &one, w, kBf16, ks, x,
              kBf16, ks, &zero, y, kBf16, ns, kSumsInF32, kDefault),
        "multiplying");
}

}  // namespace invar::bench
