#include "collectives/shared_word.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace invar {

namespace {

// Between two looks at how the others are: a fraction of what a user notices.
constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 20'000'000};

// The C++ library's own waits are for threads of one process.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &kNap, nullptr, 0);
}

}  // namespace

SharedWord::State SharedWord::state(uint32_t value, uint32_t target) {
  // Counts are compared as on a clock: what is less than half a round behind has been reached.
  if (static_cast<int32_t>((value & ~1u) - (target << 1)) >= 0) return State::reached;
  return value & 1 ? State::ended : State::below;
}

void SharedWord::add(uint32_t n) {
  value_.fetch_add(n << 1);
  wake();
}

void SharedWord::end() {
  value_.fetch_or(1);
  wake();
}

void SharedWord::wake() {
  // A sleeper has said so before it looked for the last time.
  if (sleepers_.load() > 0) ::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SharedWord::wait(uint32_t target, int spins, FunctionRef<void()> look) {
  for (int i = 0; i < spins; ++i) {
    const State now = state(value_.load(std::memory_order_acquire), target);
    if (now != State::below) return now == State::reached;
    _mm_pause();
  }
  while (true) {
    sleepers_.fetch_add(1);
    const uint32_t value = value_.load();
    const State now = state(value, target);
    if (now == State::below) sleep_while(value_, value);
    sleepers_.fetch_sub(1);
    if (now != State::below) return now == State::reached;
    // Nothing is to be seen where what woke it is what it waits for.
    if (state(value_.load(std::memory_order_acquire), target) == State::below) look();
  }
}

}  // namespace invar
