// How long a device works for a step, and how long it has nothing to do between two: by the
// device's own clock, since the host sees when it asked and when it heard of the end, and with two
// steps in flight neither is when the device began.
#pragma once

#include <array>
#include <memory>

#include "device/execution.h"

namespace invar {

class DeviceClock {
 public:
  // Steps are numbered from 0, and at most kInFlight of them in flight.
  static constexpr int kInFlight = 2;

  explicit DeviceClock(const Execution& on) : on_(on) {
    for (auto* events : {&begins_, &ends_})
      for (std::unique_ptr<Event>& event : *events) event = on.device->make_event();
  }

  // Around what a step puts into the stream.
  void begin(int64_t step) { on_.stream->record(*begins_[step % kSteps]); }
  void end(int64_t step) { on_.stream->record(*ends_[step % kSteps]); }
  // Once the step is done. 0 on a host.
  double seconds_of(int64_t step) const {
    return ends_[step % kSteps]->seconds_since(*begins_[step % kSteps]);
  }
  // Once the step is done. 0 for the first one, and on a host.
  double idle_seconds_before(int64_t step) const {
    if (step == 0) return 0;
    return begins_[step % kSteps]->seconds_since(*ends_[(step - 1) % kSteps]);
  }

 private:
  static constexpr int kSteps = kInFlight + 1;  // the one before those in flight, too
  using Events = std::array<std::unique_ptr<Event>, kSteps>;

  const Execution on_;
  Events begins_, ends_;
};

}  // namespace invar
