// The engine's steps as a trace that chrome://tracing and Perfetto open: --trace-steps FILE.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "backend.h"

namespace invar::server {

// Safe from every thread. The unfinished file can be opened while the server runs, since the format
// allows a list without its end; the end comes with the server's.
class StepTrace {
 public:
  // Throws Error when the file cannot be written.
  explicit StepTrace(const std::string& file);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;
  void add(const StepRecord& step);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::mutex mutex_;
  bool is_empty_ = true;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace invar::server
