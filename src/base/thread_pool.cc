#include "base/thread_pool.h"

#include <hwloc.h>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <exception>
#include <mutex>
#include <system_error>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
// About 100 us of waiting before a thread gives its core away: longer than the gap between two
// operations of a step, shorter than anything a user notices.
constexpr int kSpins = 4000;

// Waits until `value` differs from `old`.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old, bool may_spin) {
  if (may_spin)
    for (int i = 0; i < kSpins; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      _mm_pause();
    }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// The exception of the lowest share among those that throw.
struct FirstThrown {
  std::mutex mutex;
  int share = 0;
  std::exception_ptr exception;

  // Takes the exception of share `index`, in its handler.
  void take(int index) {
    const std::lock_guard lock(mutex);
    if (exception && share < index) return;
    share = index;
    exception = std::current_exception();
  }
};

// Begins a last round in which every worker returns.
void begin_last_round(std::atomic<bool>& stopping, std::atomic<uint32_t>& round) {
  stopping.store(true, std::memory_order_relaxed);
  round.fetch_add(1, std::memory_order_release);
  round.notify_all();
}

}  // namespace

ScopedFlushToZero::ScopedFlushToZero() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
}

ScopedFlushToZero::~ScopedFlushToZero() {
  _mm_setcsr(saved_);
}

bool ScopedFlushToZero::is_on() {
  constexpr unsigned both = kFlushToZero | kDenormalsAreZero;
  return (_mm_getcsr() & both) == both;
}

std::vector<int> ThreadPool::usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> first, second;  // first hardware thread of each core, then the others
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) == 0 && hwloc_topology_load(topology) == 0) {
    const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    for (int c = 0; c < cores; ++c) {
      hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, c);
      bool is_first = true;
      for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
           cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
        if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) continue;
        (is_first ? first : second).push_back(cpu);
        is_first = false;
      }
    }
    hwloc_topology_destroy(topology);
  }
  if (first.empty())  // hwloc knows nothing here: take what the kernel says
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) first.push_back(cpu);
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

ThreadPool::ThreadPool(int threads, int first_core) {
  const std::vector<int> cores = usable_cores();
  if (threads == 0) threads = static_cast<int>(cores.size());
  CHECK(threads >= 1, "a thread pool needs at least one thread");
  claims_ = std::vector<Claim>(threads);
  may_spin_ = first_core + threads <= static_cast<int>(cores.size());
  if (may_spin_) callers_core_ = cores[static_cast<size_t>(first_core)];
  try {
    for (int i = 1; i < threads; ++i) {
      const int core = may_spin_ ? cores[static_cast<size_t>(first_core + i)] : -1;
      workers_.emplace_back([this, i, core] { worker(i, core); });
    }
  } catch (const std::system_error& error) {
    const size_t started = workers_.size() + 1;
    begin_last_round(stopping_, round_);  // or those that run would be waited for for ever
    fail("expected {} threads, the system gave {}: {}", threads, started, error.what());
  }
}

ThreadPool::~ThreadPool() {
  begin_last_round(stopping_, round_);
}

void ThreadPool::pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set,
                         &set);  // best effort: a refusal costs speed only
}

void ThreadPool::pin_caller() const {
  if (callers_core_ >= 0) pin(callers_core_);
}

// Computes the shares of a round that no one has claimed, beginning with share `first`.
void ThreadPool::compute(int first, uint32_t round) {
  for (int i = 0; i < size(); ++i) {
    const int index = (first + i) % size();
    uint32_t before = round - 1;
    if (!claims_[index].round.compare_exchange_strong(before, round, std::memory_order_acq_rel))
      continue;
    (*work_)(Part{index, size()});
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

void ThreadPool::worker(int index, int core) {
  if (core >= 0) pin(core);
  ScopedFlushToZero flush;
  for (uint32_t seen = 0;;) {
    wait_while(round_, seen, may_spin_);
    // Other work of this core, such as a server's, comes between two shares: in the middle of one
    // it would hold up the team.
    ::sched_yield();
    if (stopping_.load(std::memory_order_relaxed)) return;
    seen = round_.load(std::memory_order_acquire);
    compute(index, seen);
  }
}

void ThreadPool::run(FunctionRef<void(Part)> work) {
  ScopedFlushToZero flush;
  if (workers_.empty()) {
    work(Part{0, 1});
    return;
  }
  FirstThrown thrown;
  const auto guarded = [&](Part part) {
    try {
      work(part);
    } catch (...) {
      thrown.take(part.index);
    }
  };
  FunctionRef<void(Part)> shares(guarded);
  work_ = &shares;
  remaining_.store(static_cast<uint32_t>(size()), std::memory_order_relaxed);
  const uint32_t round = round_.fetch_add(1, std::memory_order_release) + 1;
  round_.notify_all();
  compute(0, round);
  for (uint32_t left; (left = remaining_.load(std::memory_order_acquire)) != 0;)
    wait_while(remaining_, left, may_spin_);
  if (thrown.exception) std::rethrow_exception(thrown.exception);
}

void run_or_throw(ThreadPool& pool, FunctionRef<void(Part)> work) {
  pool.run(work);
}

}  // namespace invar
