// A session as Python holds it: calls let go of the GIL, and a process that was forked has none.
#pragma once

#include <invar/invar.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "base/error.h"

namespace invar::python {

namespace py = pybind11;

class SessionHandle {
 public:
  explicit SessionHandle(const SessionOptions& options)
      : session_(std::make_shared<Session>(options)), process_(getpid()) {}
  SessionHandle(const SessionHandle&) = delete;
  ~SessionHandle() {
    // Its threads are the parent's: nobody here could wait for them.
    if (!is_own()) new std::shared_ptr<Session>(std::move(session_));
  }

  // Calls `task` with the session and without the GIL. Throws UsageError where it is closed.
  template <typename Task>
  auto call(Task task) const {
    if (!is_own())
      fail_usage("expected the process that opened the session, found one that was forked from it");
    const std::shared_ptr<Session> session = session_;
    if (!session) fail_usage("expected an open session, found one that is closed");
    const py::gil_scoped_release without;
    return task(*session);
  }
  void close() {
    std::shared_ptr<Session> last;
    if (is_own()) last.swap(session_);
    const py::gil_scoped_release without;
    last.reset();
  }

 private:
  bool is_own() const { return getpid() == process_; }

  std::shared_ptr<Session> session_;
  pid_t process_;
};

// Called after the steps of a long call: lets Python see its signals (Ctrl-C ends the call) and
// tells `progress`, which is None or takes (answers that are whole, tokens).
class Watch {
 public:
  explicit Watch(const py::object& progress) : progress_(progress) {}

  void operator()(size_t answered, size_t tokens) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(20)) return;
    last_ = now;
    const py::gil_scoped_acquire with;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!progress_.is_none()) progress_(answered, tokens);
  }

 private:
  const py::object& progress_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace invar::python
