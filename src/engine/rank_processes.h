// Tensor-parallel ranks as processes of this machine. Rank 0 is the process that has the engine; it
// starts the others, each of which loads its shard of the model, and sends them every batch as
// bytes. Their group exchanges over sockets between neighbours of the tree (collectives/group.h).
// Slow and correct: operands go through the kernel. A rank that ends takes the step with it, which
// throws; nothing of such a step is taken.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/executor.h"

namespace invar {

class RankProcesses {
 public:
  // Starts ranks 1 and up of the options' model. Throws Error when the system gives no more
  // processes or sockets.
  RankProcesses(const ModelOptions& options, int threads_of_rank);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Waits until every rank has loaded its shard. Throws Error with what one of them said.
  void expect_ready();
  // Every rank takes the checkpoint in `directory`. Throws as expect_ready.
  void take(const std::string& directory);

  // For the executor. One at a time: REQUIRES a begin_runner before the others.
  void begin_runner(const RunnerLimits& limits);
  void end_runner();
  void run(const Batch& batch);
  void copy_slots(const std::vector<SlotCopy>& copies);
  Group& group() { return *group_; }  // rank 0's

 private:
  void send_to_all(std::string_view message);
  void start(int rank, const ModelOptions& options, int threads_of_rank,
             const std::vector<int>& peers);

  std::vector<int> sockets_;  // to ranks 1 and up, for messages
  std::vector<int> peers_;    // rank 0's, for the group
  std::vector<pid_t> processes_;
  std::unique_ptr<Group> group_;
  bool has_runner_ = false;
};

// The life of such a process. `sockets`: for messages, then to every rank of the group, -1 for
// none. Returns when the parent has ended or is done with it. Throws Error when a message makes no
// sense or a step fails.
void serve_rank(int rank, const std::vector<int>& sockets);

}  // namespace invar
