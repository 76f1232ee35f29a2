// Ranks, and stages, that are processes of an MPI job.
#pragma once

#include <memory>
#include <vector>

#include "collectives/channel.h"
#include "collectives/group.h"
#include "collectives/mpi/library.h"

namespace invar::mpi {

// `peers`: the process of the job that each rank of the group is.
std::unique_ptr<Group> make_group(Job& job, int rank, std::vector<int> peers);
// To the process `peer` of the job, or from it.
std::unique_ptr<Channel> make_channel(Job& job, int peer);

}  // namespace invar::mpi
