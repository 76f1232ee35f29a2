#include "request_log.h"

#include <fmt/chrono.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace invar::server {

namespace {

// Milliseconds from one time to another, or null where one of them did not come.
json::Value between(Clock::time_point from, Clock::time_point to) {
  if (from == Clock::time_point{} || to == Clock::time_point{}) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count();
}

std::string now() {
  const auto time = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)), milliseconds % 1000);
}

}  // namespace

RequestLog::RequestLog(const std::string& file)
    : file_(file == "-" ? stderr : std::fopen(file.c_str(), "ae")) {
  if (!file_) fail("{}: cannot be written: {}", file, std::strerror(errno));
}

void RequestLog::add(const Admitted& admitted, const RequestTimes& times, int64_t prompt_tokens,
                     int64_t tokens, const char* reason) {
  const std::string line =
      json::dump(json::Object{{"time", now()},
                              {"event", "request"},
                              {"id", admitted.entry.id},
                              {"endpoint", admitted.entry.endpoint},
                              {"model", admitted.head.model},
                              {"seed", admitted.entry.params.seed},
                              {"stream", admitted.request.stream},
                              {"answers", std::ssize(admitted.requests)},
                              {"prompt_tokens", prompt_tokens},
                              {"tokens", tokens},
                              {"finish", reason},
                              {"queue_ms", between(times.arrival, times.scheduled)},
                              {"first_token_ms", between(times.arrival, times.first_token)},
                              {"total_ms", between(times.arrival, times.end)}}) +
      "\n";
  std::fwrite(line.data(), 1, line.size(), file_.get());
  std::fflush(file_.get());
}

}  // namespace invar::server
