#include "nccl.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/error.h"

namespace invar::bench {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) fail("expected {} in NCCL, found none", name);
}

void check(int status, const char* what) {
  if (status != 0) fail("NCCL failed while {}: status {}", what, status);
}

}  // namespace

Nccl::Nccl() {
  const char* named = std::getenv("INVAR_NCCL");
  void* library = dlopen(named ? named : "libnccl.so.2", RTLD_NOW);
  if (!library) return;
  find(library, "ncclGetVersion", version_);
  find(library, "ncclGetUniqueId", make_id_);
  find(library, "ncclCommInitRank", join_);
  find(library, "ncclCommDestroy", leave_);
  find(library, "ncclAllReduce", all_reduce_);
}

std::string Nccl::version() const {
  int number = 0;
  if (!is_there()) return "none";
  check(version_(&number), "saying its version");
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

Nccl::Id Nccl::make_id() const {
  Id id;
  check(make_id_(&id), "making an id");
  return id;
}

void* Nccl::join(int ranks, const Id& id, int rank) const {
  void* group = nullptr;
  check(join_(&group, ranks, id, rank), "joining");
  return group;
}

void Nccl::leave(void* group) const {
  check(leave_(group), "leaving");
}

void Nccl::all_reduce(void* group, void* data, int64_t count, Type type,
                      cudaStream_t stream) const {
  constexpr int kSum = 0;
  check(all_reduce_(data, data, static_cast<size_t>(count), static_cast<int>(type), kSum, group,
                    stream),
        "adding");
}

}  // namespace invar::bench
