// A fixed team of pinned threads that run one function at a time, each on its own share. A share
// depends on its number alone, not on the thread that computes it: where a thread is late, because
// its core does other work, a free one takes its share. Every member, the caller included, runs
// with subnormals flushed to zero (numerics 0).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace invar {

// Share `index` of `count`: what one thread of a team is to do.
struct Part {
  int index = 0;
  int count = 1;

  // This share of [0, total): a contiguous run; shares differ by at most one `grain`.
  struct Run {
    int64_t begin, end;
  };
  Run of(int64_t total, int64_t grain = 1) const {
    const int64_t grains = (total + grain - 1) / grain;
    const int64_t begin = grains * index / count * grain;
    const int64_t end = grains * (index + 1) / count * grain;
    return {begin < total ? begin : total, end < total ? end : total};
  }
};

class ThreadPool {
 public:
  // `threads` >= 1, the caller among them; 0 means one per core that this process may use. Workers
  // are pinned to one core each while there are as many cores as threads; otherwise they wait
  // without spinning. A pool beside others begins at its own core of usable_cores(), and one that
  // reaches beyond the last shares cores with others. Throws Error when the system gives no more
  // threads.
  explicit ThreadPool(int threads, int first_core = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Pins the calling thread, which is to call `run` for the rest of its life, to the pool's first
  // core, as workers are to the others: a scheduler that moved it would put two members on one
  // core. Threads that it starts would inherit the core, so it must start none.
  void pin_caller() const;

  // Calls work(Part{i, size()}) for every i, each once, and returns when all are done. No
  // allocation. Not reentrant: `work` must not call run on the same pool. Where shares throw, the
  // exception of the lowest one is thrown here when all have ended.
  void run(FunctionRef<void(Part)> work);

  // Pins the calling thread, and threads that it starts later, to a core of usable_cores().
  static void pin(int core);
  // Cores that this process may use, one per physical core first (hwloc).
  static std::vector<int> usable_cores();

 private:
  // Each run is a round; a share is claimed by raising its own round to that of the run.
  struct alignas(64) Claim {
    std::atomic<uint32_t> round{0};
  };

  void worker(int index, int core);
  void compute(int first, uint32_t round);

  bool may_spin_ = false;
  int callers_core_ = -1;  // -1: not pinned
  FunctionRef<void(Part)>* work_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> remaining_{0};
  std::atomic<bool> stopping_{false};
  std::vector<Claim> claims_;
  std::vector<std::jthread>
      workers_;  // last: its threads use everything above until they are joined
};

// pool.run(work), where a reader is to know
// that work may throw.
void run_or_throw(ThreadPool& pool, FunctionRef<void(Part)> work);

// Sets flush-to-zero and denormals-are-zero on this thread for its lifetime (numerics 0), restores
// them after.
class ScopedFlushToZero {
 public:
  ScopedFlushToZero();
  ~ScopedFlushToZero();
  ScopedFlushToZero(const ScopedFlushToZero&) = delete;
  ScopedFlushToZero& operator=(const ScopedFlushToZero&) = delete;

  static bool is_on();

 private:
  unsigned saved_;
};

}  // namespace invar
