// NCCL, opened while the program runs: not a dependency. Its sums promise no order; it is for
// comparing speeds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace invar::bench {

// The library that $INVAR_NCCL names, else libnccl.so.2 where the linker looks.
class Nccl {
 public:
  enum class Type { f32 = 7, bf16 = 9 };
  struct Id {
    char bytes[128];
  };

  Nccl();
  bool is_there() const { return all_reduce_ != nullptr; }
  std::string version() const;

  // The id of a group of ranks, which one of them makes. Every rank joins, each on its current GPU.
  Id make_id() const;
  void* join(int ranks, const Id& id, int rank) const;
  void leave(void* group) const;
  // data[i] = the sum over the ranks, in some order.
  void all_reduce(void* group, void* data, int64_t count, Type type, cudaStream_t stream) const;

 private:
  int (*version_)(int*) = nullptr;
  int (*make_id_)(Id*) = nullptr;
  int (*join_)(void**, int, Id, int) = nullptr;
  int (*leave_)(void*) = nullptr;
  int (*all_reduce_)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
};

}  // namespace invar::bench
