// A counter in memory that processes share, on which they wait: first looking, then asleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/function_ref.h"

namespace invar {

class alignas(64) SharedWord {
 public:
  // Counts go round after 2^31.
  uint32_t count() const { return value_.load(std::memory_order_acquire) >> 1; }
  // Adds n: a thread that waits for the sum sees everything that was written before.
  void add(uint32_t n);
  // Nobody waits for a higher count any longer.
  void end();

  // Until the count has reached `target`; false when it has ended before. Looks `spins` times
  // before it sleeps; asleep it calls `look` now and then, which may throw.
  bool wait(uint32_t target, int spins, FunctionRef<void()> look);

 private:
  enum class State { below, reached, ended };
  static State state(uint32_t value, uint32_t target);
  void wake();

  std::atomic<uint32_t> value_{0};  // the count, twice, plus 1 once it has ended
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace invar
