// Ranks whose operands lie on GPUs, their own or one that several share, and whose kernels read and
// write each other's memory (docs/decisions/0014). Where GPUs do not see each other's memory, and
// in a build without CUDA, operands go through host memory (make_staged_group).
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/group.h"

namespace invar {

// How they meet.
struct PeerOptions {
  enum class Way {
    automatic,  // on the device where every rank has a GPU of its own, else at the host's
    device,     // kernels wait for each other: they must be able to run at the same time
    host,       // the host meets, and streams wait for each other
    staged,     // operands go through host memory
    nccl,       // NCCL gathers operands, which are added here; each rank needs a GPU of its own
    none,       // nothing is exchanged, sums and answers are wrong: to see what it costs
    nccl_sum,   // NCCL's own sum, of no order that is promised: the same
  };
  Way way = Way::automatic;
  double seconds = 10;  // that the device waits for a rank before it gives up
  // Seconds from one look to the next, of a kernel that waits, whether a rank has left: it looks
  // into host memory, and thousands of threads that do so often are late for what they wait for.
  double asks_every = 0.01;
  // Bytes that a rank pushes to the others at once; it adds its share of longer operands. -1: the
  // faster way with so many ranks (decision 14).
  int64_t one_shot_bytes = -1;
};

// All ranks are threads of this process and meet in `host_group` at first, and for what lies in no
// GPU's memory; it must live as long.
std::unique_ptr<Group> make_peer_group(Group& host_group, const PeerOptions& options = {});

struct PeerProcesses {
  // A number that becomes other than 0 once a rank has left, in memory that the host's processes
  // share, at the beginning of a page. Null: no rank says that it leaves, and a rank that waits
  // gives up after some time.
  uint32_t* leaver = nullptr;
  Trouble trouble;  // what is known to be wrong with the others
};

// The word of a group in shared memory (make_shared_group).
uint32_t* leaver_of(SharedMemory& memory);

// The same of ranks that are processes of this host. Their windows travel as CUDA's handles; long
// operands go through them in pieces. Ranks that share a GPU wait for their streams.
std::unique_ptr<Group> make_peer_group(Group& host_group, PeerProcesses processes,
                                       const PeerOptions& options = {});

// sum[i] = ((r0 + r1) + r2) ... over the operands of `ranks` ranks that lie one after the other in
// `gathered`, on a GPU: of make_chain_group.
void add_chain_on_device(int ranks, const float* gathered, float* sum, int64_t count,
                         const Execution& on);

}  // namespace invar
