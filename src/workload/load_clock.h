// The clock of a load: the wall's, or one of processor time.
#pragma once

#include <memory>
#include <string>

#include "scheduler/step_plan.h"

namespace invar {

class LoadClock {
 public:
  virtual ~LoadClock() = default;
  // Seconds since it was made.
  virtual double now() = 0;
  // Nothing is to be done before `time`.
  virtual void wait_until(double time) = 0;
  // A step was done whose work was this.
  virtual void after_step(const StepWork&) {}
};

// The wall's time: waits by sleeping.
std::unique_ptr<LoadClock> make_real_clock();
// Processor time of this process, so that other users of the machine do not count; where there is
// nothing to do it jumps. Meant for an engine of one thread.
std::unique_ptr<LoadClock> make_cpu_clock();

}  // namespace invar
