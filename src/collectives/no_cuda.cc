// Stands in for collectives/cuda in a build without CUDA.
#include "base/check.h"
#include "collectives/nccl_stream.h"
#include "collectives/peer_group.h"

namespace invar {

std::unique_ptr<Group> make_peer_group(Group& host_group, const PeerOptions&) {
  return make_staged_group(host_group);
}

std::unique_ptr<Group> make_peer_group(Group& host_group, PeerProcesses, const PeerOptions&) {
  return make_staged_group(host_group);
}

void add_chain_on_device(int, const float*, float*, int64_t, const Execution&) {
  CHECK(false, "a device other than the host in a build without CUDA");
}

Nccl::Stream nccl_stream(Device&, Stream&) {
  return nullptr;
}

}  // namespace invar
