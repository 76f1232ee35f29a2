// SIGTERM and SIGINT. The first makes a file readable, for whoever serves. The second ends the
// process by the signal's default action, at once: its handler needs no thread, so nothing that the
// process is busy with can hold it up. SIGHUP is ignored with a line in the log, and the other
// signals that would end the process (base/signals.h) without one.
#pragma once

namespace invar::server {

// One at a time in a process. Other signals that would end it (base/signals.h) are ignored from
// then on, SIGHUP with a line in the log.
class StopSignals {
 public:
  StopSignals();   // throws Error when the system gives no file
  ~StopSignals();  // the signals end the process again
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int file() const { return file_; }

 private:
  int file_;
};

}  // namespace invar::server
