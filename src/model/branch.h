// Work that a device may do beside what its main stream does next, such as a shared expert's
// products beside the choice of the others.
#pragma once

#include <memory>

#include "device/execution.h"

namespace invar {

class Branch {
 public:
  // On a host there is nothing beside: work is done when it is asked for.
  explicit Branch(Device& device) {
    if (device.is_host()) return;
    stream_ = device.make_stream();
    fork_ = device.make_event();
    end_ = device.make_event();
  }

  explicit operator bool() const { return stream_ != nullptr; }

  // Says where work goes that begins when all that `main` has so far is done.
  Execution fork(const Execution& main) {
    main.stream->record(*fork_);
    stream_->wait_for(*fork_);
    Execution on = main;
    on.stream = stream_.get();
    return on;
  }
  // Makes what `main` gets from now on begin when the branch is done, too.
  void join(const Execution& main) {
    stream_->record(*end_);
    main.stream->wait_for(*end_);
  }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> fork_, end_;
};

}  // namespace invar
