#include "cuda_power.h"

#include <dlfcn.h>

#include <algorithm>

namespace invar::bench {

namespace {

constexpr int kMultiprocessors = 1;               // of nvmlClockType_t
constexpr unsigned long long kPowerLimits = 0x4;  // of the reasons why a clock is not higher

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

GpuPower::GpuPower() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  int (*start)() = nullptr;
  int (*first)(unsigned, void**) = nullptr;
  if (!library || !find(library, "nvmlInit_v2", start) ||
      !find(library, "nvmlDeviceGetHandleByIndex_v2", first) ||
      !find(library, "nvmlDeviceGetTotalEnergyConsumption", energy_) ||
      !find(library, "nvmlDeviceGetClockInfo", clock_) ||
      !find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons_) || start() != 0 ||
      first(0, &device_) != 0)
    device_ = nullptr;
}

uint64_t GpuPower::joules() const {
  unsigned long long value = 0;
  energy_(device_, &value);
  return value;
}

void GpuPower::begin() {
  clocks_ = looks_ = capped_ = 0;
  if (is_there()) begin_ = joules();
}

void GpuPower::look() {
  unsigned clock = 0;
  unsigned long long reasons = 0;
  if (!is_there() || clock_(device_, kMultiprocessors, &clock) != 0) return;
  reasons_(device_, &reasons);
  clocks_ += clock;
  capped_ += (reasons & kPowerLimits) != 0;
  ++looks_;
}

GpuPower::Draw GpuPower::end(double seconds) {
  if (!is_there()) return {};
  const double looks = std::max(1, looks_);
  return {.watts = static_cast<double>(joules() - begin_) * 1e-3 / seconds,
          .megahertz = clocks_ / looks,
          .capped = capped_ / looks};
}

}  // namespace invar::bench
