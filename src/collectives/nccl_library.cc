#include "collectives/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace invar {

namespace {

constexpr int kInProgress = 7;  // of a communicator whose calls return at once

// The beginning of ncclConfig_t, which only grows: of 2.14, when communicators became such.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

}  // namespace

const Nccl& Nccl::open() {
  static const Nccl nccl;
  return nccl;
}

Nccl::Nccl() {
  // Its multicast is not used: an all-gather needs none, and the order inside a switch is nobody's.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  const char* named = std::getenv("INVAR_NCCL");
  const char* name = named ? named : "libnccl.so.2";
  void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail("NCCL was to be used, and cannot be opened: {}; INVAR_NCCL names another file",
         ::dlerror());
  const auto find = [&](const char* function, auto& into) {
    void* found = ::dlsym(library, function);
    if (!found) fail("expected NCCL in {}, found no {}", name, function);
    std::memcpy(&into, &found, sizeof found);
  };
  find("ncclGetErrorString", error_);
  find("ncclGetVersion", version_);
  find("ncclGetUniqueId", make_id_);
  find("ncclCommInitRank", join_);
  find("ncclCommGetAsyncError", state_);
  find("ncclCommDestroy", destroy_);
  find("ncclCommAbort", abort_);
  find("ncclAllGather", all_gather_);
  find("ncclAllReduce", all_reduce_);
  find("ncclBroadcast", broadcast_);
  int version = 0;
  check(version_(&version), "saying its version");
  constexpr int kLeast = 21100;  // recorded steps, with several communicators
  if (version < kLeast) fail("expected NCCL 2.11 or later in {}, found {}", name, version);
  constexpr int kGivenUp = 21400;  // communicators that can be given up while ranks join
  if (version >= kGivenUp) find("ncclCommInitRankConfig", join_by_);
}

void Nccl::check(int status, const char* what) const {
  if (status != 0 && status != kInProgress) fail("NCCL failed while {}: {}", what, error_(status));
}

Nccl::Id Nccl::make_id() const {
  Id id;
  check(make_id_(&id), "making an id");
  return id;
}

Nccl::Comm Nccl::join(int ranks, const Id& id, int rank) const {
  Comm comm = nullptr;
  check(join_(&comm, ranks, id, rank), "joining ranks, each of which needs a GPU of its own");
  return comm;
}

Nccl::Comm Nccl::begin_joining(int ranks, const Id& id, int rank) const {
  if (!join_by_)
    fail("expected NCCL 2.14 or later, whose groups can be given up, found an earlier one");
  Config config;
  Comm comm = nullptr;
  const int status = join_by_(&comm, ranks, id, rank, &config);
  if (status != 0 && status != kInProgress && comm) abort_(comm);
  check(status, "joining ranks, each of which needs a GPU of its own");
  return comm;
}

bool Nccl::has_done(Comm comm) const {
  int status = 0;
  check(state_(comm, &status), "saying what it does");
  check(status, "joining ranks or taking what they send");
  return status != kInProgress;
}

void Nccl::destroy(Comm comm) const {
  destroy_(comm);
}

void Nccl::abort(Comm comm) const {
  abort_(comm);
}

void Nccl::all_gather(const void* mine, void* all, size_t count, Type type, Comm comm,
                      Stream stream) const {
  check(all_gather_(mine, all, count, static_cast<int>(type), comm, stream),
        "gathering what ranks exchange");
}

void Nccl::all_reduce(float* data, size_t count, Comm comm, Stream stream) const {
  constexpr int kSum = 0;
  check(all_reduce_(data, data, count, static_cast<int>(Type::floats), kSum, comm, stream),
        "adding what ranks exchange");
}

void Nccl::broadcast(void* data, size_t count, Type type, int root, Comm comm,
                     Stream stream) const {
  check(broadcast_(data, data, count, static_cast<int>(type), root, comm, stream),
        "taking what a rank sends to all");
}

}  // namespace invar
