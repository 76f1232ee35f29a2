// Operations of ranks on GPUs, by kernels that read and write each other's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/execution.h"

namespace invar::cuda {

constexpr int kMostPeers = 8;      // ranks of a group
constexpr int kPeerBlocks = 128;   // of the largest launch: fewer than the multiprocessors
constexpr int kPeerThreads = 512;  // of a block

// A rank's memory that the others write. Begins as zeros, but for the slots.
struct PeerWindow {
  // By phase, rank and block: the last operation in which that block came so far.
  uint64_t arrived[2][kMostPeers][kPeerBlocks];
  // By rank and block: how far behind that rank's window its operand lies. Ranks of other processes
  // see another address there.
  uint64_t operand[kMostPeers][kPeerBlocks];
  // How many operations each block has taken part in; all alike between operations.
  uint64_t operations[kPeerBlocks];
  uint32_t has_stopped;  // a wait was given up: nobody waits any longer

  // Behind it: [turn][rank][slot_bytes], what ranks push; where nothing has come yet all bits are
  // set.
  static constexpr size_t kSlotsAt = 64 << 10;
};
static_assert(sizeof(PeerWindow) <= PeerWindow::kSlotsAt);

// A group as the kernels of one of its ranks see it.
struct PeerView {
  int32_t rank, size;
  std::byte* windows[kMostPeers];  // PeerWindow, by rank
  size_t slot_bytes;
  const uint32_t* leaver;  // host memory: not 0 once a rank has left
  uint32_t* gave_up;       // host memory: becomes 1 when a wait is given up
  uint64_t patience;       // nanoseconds until a wait is given up
  uint64_t asks_every;     // nanoseconds from one look at `leaver` to the next
  // Behind the slots: where operands lie for ranks that see nothing else of this one. 0 where all
  // are threads of one process, which see everything.
  size_t desk_bytes;

  size_t desk_at() const {
    return PeerWindow::kSlotsAt + 2 * static_cast<size_t>(size) * slot_bytes;
  }
  size_t window_bytes() const { return desk_at() + desk_bytes; }
  std::byte* desk(int of) const { return windows[of] + desk_at(); }
};

// data[i] = tree over the ranks (collectives/group.h). `count` is a multiple of 4 and data is
// aligned to 16 bytes. Every rank launches the same operations in the same order; a kernel waits
// for those of the others on the device, so each rank needs a GPU of its own.
// One shot: every rank writes its operand, of up to slot_bytes, into a slot of every other one, and
// adds what it finds in its own slots. A word that has not come yet is told by its bits.
void push_and_add(const PeerView& group, float* data, int64_t count, const Execution& on);
// Two shots at once: a rank reads its share of all operands, adds it, and writes the sums into all.
// `own`: where its own share is instead, or null.
void add_shares(const PeerView& group, float* data, int64_t count, const Execution& on,
                float* own = nullptr);
// all[rank * stride ...] = the ranks' `mine`; in bytes, multiples of 16, aligned to that.
void gather_pieces(const PeerView& group, const void* mine, int64_t bytes, void* all,
                   int64_t stride, const Execution& on);

// The same where events have made sure that all operands are there, so that the device does not
// wait: this rank's share of the sums goes into all operands.
struct PeerOperands {
  int32_t rank, size;
  float* data[kMostPeers];
};
void add_share(const PeerOperands& operands, int64_t count, const Execution& on);

// sum[i] = tree over the operands of `size` ranks that lie one after the other in `gathered`.
void add_gathered(int size, const float* gathered, float* sum, int64_t count, const Execution& on);
// The same in a chain, ((r0 + r1) + r2) ...
void add_chain(int size, const float* gathered, float* sum, int64_t count, const Execution& on);

}  // namespace invar::cuda
