#include "engine/pulse.h"

#include <atomic>
#include <chrono>

#include "base/error.h"

namespace invar {

namespace {

constexpr auto kBeat = std::chrono::milliseconds(100);

// On a cache line each. Memory begins as zeros.
struct alignas(64) Beats {
  std::atomic<uint32_t> count;
};

Beats& beats_of(SharedMemory& memory, size_t number) {
  return reinterpret_cast<Beats*>(memory.data())[number];
}

}  // namespace

size_t pulse_bytes(int processes) {
  return static_cast<size_t>(processes) * sizeof(Beats);
}

Pulse::Pulse(SharedMemory& memory, int number)
    : thread_([this, &beats = beats_of(memory, static_cast<size_t>(number))] {
        std::unique_lock lock(mutex_);
        do beats.count.fetch_add(1, std::memory_order_relaxed);
        while (!ending_.wait_for(lock, kBeat, [&] { return ends_; }));
      }) {}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_one();
}

PulseWatch::PulseWatch(SharedMemory& memory, std::vector<std::string> names)
    : memory_(memory), names_(std::move(names)), seen_(names_.size()) {}

std::string PulseWatch::trouble(Time now) {
  if (now - last_look_ < kApart) return {};
  last_look_ = now;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const uint32_t count = beats_of(memory_, i).count.load(std::memory_order_relaxed);
    Seen& seen = seen_[i];
    seen = count == seen.count ? Seen{count, seen.looks + 1} : Seen{count, 0};
    if (seen.looks > kLooks) return fmt::format("{} gives no sign of life", names_[i]);
  }
  return {};
}

}  // namespace invar
