// Ranks on GPUs that need not see each other's memory: NCCL gathers their operands, and each rank
// adds them in the order of the tree. For GPUs of several hosts, and to compare with.
#pragma once

#include <memory>
#include <optional>

#include "collectives/peer_group.h"

namespace invar {

// As make_peer_group. `is_tree`: false for NCCL's own sum, of which the order is not promised.
std::unique_ptr<Group> make_nccl_group(Group& host_group, std::optional<PeerProcesses> processes,
                                       bool is_tree);

}  // namespace invar
