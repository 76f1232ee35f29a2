#include "workload/load_clock.h"

#include <time.h>

#include <algorithm>

#include <chrono>
#include <thread>

#include "base/timer.h"

namespace invar {

namespace {

class RealClock final : public LoadClock {
 public:
  double now() override { return timer_.seconds(); }
  void wait_until(double time) override {
    const double left = time - now();
    if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
  }

 private:
  Timer timer_;
};

class CpuClock final : public LoadClock {
 public:
  CpuClock() : start_(processor_seconds()) {}
  double now() override { return processor_seconds() - start_ + skipped_; }
  void wait_until(double time) override { skipped_ += std::max(0.0, time - now()); }

 private:
  static double processor_seconds() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  double start_, skipped_ = 0;
};

}  // namespace

std::unique_ptr<LoadClock> make_real_clock() {
  return std::make_unique<RealClock>();
}
std::unique_ptr<LoadClock> make_cpu_clock() {
  return std::make_unique<CpuClock>();
}

}  // namespace invar
