// Stands in for collectives/cuda in a build without CUDA.
#include "collectives/peer_group.h"

namespace invar {

std::unique_ptr<Group> make_peer_group(Group& host_group, const PeerOptions&) {
  return make_staged_group(host_group);
}

std::unique_ptr<Group> make_peer_group(Group& host_group, PeerProcesses, const PeerOptions&) {
  return make_staged_group(host_group);
}

}  // namespace invar
