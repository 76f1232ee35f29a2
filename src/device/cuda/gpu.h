// Everything that all streams and kernels of one GPU share; its device owns it.
#pragma once

#include <memory>
#include <mutex>

#include "device/execution.h"

namespace invar {

namespace cuda {
class Cublas;
}

class Gpu {
 public:
  explicit Gpu(int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // The runtime keeps a current GPU per thread: this one from here on. Throws Error when it has
  // failed; destructors use the form that does not.
  void make_current() const;
  void try_to_make_current() const;

  int multiprocessors() const { return multiprocessors_; }
  // Lets a kernel have so many bytes of dynamic shared memory, on the current GPU, which is this
  // one. The limit is one for all threads of the process, and some launch with less: it only grows.
  void allow_shared(const void* kernel, int bytes) const;
  // Made when it is first asked for: cuBLAS keeps its state in handles, which take long to make.
  cuda::Cublas& cublas();

 private:
  int ordinal_, multiprocessors_ = 0;
  std::mutex mutex_;
  std::unique_ptr<cuda::Cublas> cublas_;
};

// The GPU that an operation is launched on.
Gpu& gpu_of(const Execution& on);

}  // namespace invar
