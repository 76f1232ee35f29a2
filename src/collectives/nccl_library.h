// NCCL, opened at run time: the library that $INVAR_NCCL names, else libnccl.so.2 where the linker
// looks. Nothing of it is needed to build.
#pragma once

#include <cstddef>
#include <string>

struct CUstream_st;  // a stream of CUDA

namespace invar {

class Nccl {
 public:
  struct Id {
    char bytes[128];
  };
  enum class Type { bytes = 1, halves = 6, floats = 7, bfloats = 9 };
  using Comm = void*;
  using Stream = CUstream_st*;

  // Opens it when it is first called. Throws Error where there is none, saying why.
  static const Nccl& open();

  Id make_id() const;
  // Every rank joins, with its current GPU; returns when all have.
  Comm join(int ranks, const Id& id, int rank) const;
  // The same, but returns at once, and so does everything that is asked of the communicator:
  // `has_done` says when it is done.
  Comm begin_joining(int ranks, const Id& id, int rank) const;
  // Throws Error where it failed.
  bool has_done(Comm comm) const;
  void destroy(Comm comm) const;  // once nothing of it is computed
  void abort(Comm comm) const;    // whatever is computed; from any thread
  // Lays the ranks' pieces one after the other.
  void all_gather(const void* mine, void* all, size_t count, Type type, Comm comm,
                  Stream stream) const;
  // NCCL's own sum, whose order nobody promises: to compare speeds with, never for an answer.
  void all_reduce(float* data, size_t count, Comm comm, Stream stream) const;
  // The root's elements come to all.
  void broadcast(void* data, size_t count, Type type, int root, Comm comm, Stream stream) const;

 private:
  Nccl();
  void check(int status, const char* what) const;

  const char* (*error_)(int) = nullptr;
  int (*version_)(int*) = nullptr;
  int (*make_id_)(Id*) = nullptr;
  int (*join_)(Comm*, int, Id, int) = nullptr;
  int (*join_by_)(Comm*, int, Id, int, void*) = nullptr;
  int (*state_)(Comm, int*) = nullptr;
  int (*destroy_)(Comm) = nullptr;
  int (*abort_)(Comm) = nullptr;
  int (*all_gather_)(const void*, void*, size_t, int, Comm, Stream) = nullptr;
  int (*all_reduce_)(const void*, void*, size_t, int, int, Comm, Stream) = nullptr;
  int (*broadcast_)(const void*, void*, size_t, int, int, Comm, Stream) = nullptr;
};

}  // namespace invar
