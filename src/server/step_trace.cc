#include "step_trace.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace invar::server {

StepTrace::StepTrace(const std::string& file) : file_(std::fopen(file.c_str(), "we")) {
  if (!file_) fail("{}: cannot be written: {}", file, std::strerror(errno));
  std::fputs("[\n", file_.get());
}

StepTrace::~StepTrace() {
  std::fputs("\n]\n", file_.get());
}

// A slice for the step, and counters beside it. Times are microseconds.
void StepTrace::add(const StepRecord& s) {
  const double begin = static_cast<double>(s.end_ns - s.ns) * 1e-3;
  const std::string text = fmt::format(
      R"({{"name":"step","ph":"X","pid":1,"tid":{0},"ts":{1:.3f},"dur":{2:.3f},"args":)"
      R"({{"decode_rows":{3},"prompt_rows":{4},"draft_rows":{5},"stalled":{6},"tokens":{7}}}}},)"
      "\n"
      R"({{"name":"rows","ph":"C","pid":1,"tid":{0},"ts":{1:.3f},"args":)"
      R"({{"decode":{3},"prompt":{4},"draft":{5}}}}},)"
      "\n"
      R"({{"name":"queue","ph":"C","pid":1,"tid":{0},"ts":{1:.3f},"args":)"
      R"({{"running":{8},"waiting":{9}}}}})",
      s.engine, begin, static_cast<double>(s.ns) * 1e-3, s.decode_rows, s.prompt_rows, s.draft_rows,
      s.stalled, s.tokens, s.running, s.waiting);
  const std::lock_guard lock(mutex_);
  if (!std::exchange(is_empty_, false)) std::fputs(",\n", file_.get());
  std::fwrite(text.data(), 1, text.size(), file_.get());
}

}  // namespace invar::server
