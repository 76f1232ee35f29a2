// The ranks that share one model. Every reduction is a fixed binary tree over the ranks, (r0 + r1)
// + (r2 + r3) ..., which continues the tree inside each rank (numerics 2), so the number of ranks
// never shows in the bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/secret_socket.h"
#include "base/shared_memory.h"
#include "device/execution.h"

namespace invar {

// A rank, or the worker at the other end of a channel, has failed or is gone: its own error says
// why.
class PeerLeft : public Error {
 public:
  using Error::Error;
};

// Operands lie where the execution computes: an operation comes after what its stream holds before,
// and what follows in the stream sees the result.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;  // a power of two
  // data[i] = tree over the ranks of their data[i]; every rank gets the same bits. f32.
  virtual void tree_all_reduce(float* data, int64_t count, const Execution& on) = 0;
  // Lays the ranks' pieces one after the other: all[rank * bytes ...]; every rank brings the same
  // number of bytes.
  virtual void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) = 0;
  virtual void barrier() = 0;
  // Around the operations that a step puts into a stream: steps in several streams do not mix.
  // Throws PeerLeft like an operation.
  virtual void begin_step(const Execution&) {}
  virtual void end_step(const Execution&) {}
  // Whether operations can be recorded as a graph of the device: the host waits for none of them.
  virtual bool can_be_recorded() const { return false; }
  // Asked once the device was waited for: throws PeerLeft when it could not finish an operation,
  // since a rank had left or did not come in time. Results so far are of no use then.
  virtual void expect_whole() {}
  // This rank has failed: the others no longer wait for it, their operations throw PeerLeft. Its
  // last call.
  virtual void leave() = 0;
};

// A single rank: nothing to do.
Group& solo_group();

// `size` ranks that are threads of this process; element r is for the thread that plays rank r.
std::vector<std::unique_ptr<Group>> make_inproc_groups(int size);

// A rank of a group whose other ranks are other processes, or threads. peers[r] is a connected
// stream socket to rank r, or -1; those of socket_peers are needed, and stay the caller's to close.
// Operands lie in host memory.
std::unique_ptr<Group> make_socket_group(int rank, std::vector<int> peers);
// The ranks with which a rank exchanges: its neighbours in the tree, at most log2(size) + 1.
std::vector<int> socket_peers(int rank, int size);

// The same over connections between any hosts; peers[r]: to rank r, or null.
std::unique_ptr<Group> make_secret_group(int rank,
                                         std::vector<std::shared_ptr<SecretSocket>> peers);

// Returns a sentence about trouble with those that one waits for, or nothing.
using Trouble = std::function<std::string()>;

// Which rank of a group in shared memory one is, and how it waits.
struct SharedPlace {
  int rank = 0, size = 1;
  int spins = 0;    // looks before it sleeps; 0 where its core has other work
  Trouble trouble;  // asked now and then while it sleeps
};

// A rank of a group whose others are processes of this host. The memory, of
// shared_group_bytes(size) zeros, is one group's, and lives as long. Operands lie in host memory.
std::unique_ptr<Group> make_shared_group(const SharedPlace& place, SharedMemory& memory);
size_t shared_group_bytes(int size);

// Not the tree: a chain over the ranks, ((r0 + r1) + r2) + r3 ..., for the middle column of
// comparisons (numerics 10.1). Over another group, which must live as long.
std::unique_ptr<Group> make_chain_group(Group& inner);

// A group whose operands lie on a device that the host cannot read: they go through host memory to
// `host_group`, whose bits these are and which must live as long. The host waits for the stream in
// every operation.
std::unique_ptr<Group> make_staged_group(Group& host_group);

}  // namespace invar
