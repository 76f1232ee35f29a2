// Steps of one group in several streams do not mix: each begins once the one before has ended.
#pragma once

#include <memory>

#include "device/device.h"
#include "device/execution.h"

namespace invar {

class StepOrder {
 public:
  void begin(const Execution& on) {
    if (last_stream_ && last_stream_ != on.stream) on.stream->wait_for(*last_step_);
    last_stream_ = on.stream;
  }
  void end(const Execution& on) {
    if (!last_step_) last_step_ = on.device->make_event();
    on.stream->record(*last_step_);
  }

 private:
  const Stream* last_stream_ = nullptr;
  std::unique_ptr<Event> last_step_;
};

}  // namespace invar
