// A GPU's power and clocks, by NVML, which is opened at run time.
#pragma once

#include <array>
#include <cstdint>

namespace invar::bench {

class GpuPower {
 public:
  GpuPower();
  bool is_there() const { return device_ != nullptr; }

  // From here on, and at each look from here on.
  void begin();
  void look();
  // Since `begin`: the mean power by the counter of energy, the mean clock of the multiprocessors,
  // and how many of the looks found it lowered by the power limit.
  struct Draw {
    double watts = 0, megahertz = 0, capped = 0;
  };
  Draw end(double seconds);

 private:
  uint64_t joules() const;  // in thousandths

  void* device_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*reasons_)(void*, unsigned long long*) = nullptr;
  uint64_t begin_ = 0;
  double clocks_ = 0;
  int looks_ = 0, capped_ = 0;
};

}  // namespace invar::bench
