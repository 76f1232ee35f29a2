#include "server/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <regex>

namespace invar::server {
namespace {

// The value of a metric in Prometheus' text, or nothing.
std::optional<double> value_of(const std::string& text, const std::string& name) {
  std::smatch found;
  if (!std::regex_search(text, found, std::regex("(^|\n)" + name + " ([0-9.e+]+)\n"))) return {};
  return std::stod(found[2]);
}

TEST(ProcessMetrics, SayWhatTheProcessTakes) {
  while (std::clock() < CLOCKS_PER_SEC / 20) {  // the system counts hundredths of a second
  }
  const std::string text = process_metrics();
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_start_time_seconds", "process_max_fds"})
    EXPECT_GT(value_of(text, name).value_or(-1), 0) << name << "\n" << text;
  EXPECT_GT(value_of(text, "process_virtual_memory_bytes").value_or(0),
            *value_of(text, "process_resident_memory_bytes"));
}

TEST(ProcessMetrics, CountFilesThatAreOpen) {
  const double before = value_of(process_metrics(), "process_open_fds").value();
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(value_of(process_metrics(), "process_open_fds"), before + 1);
  ::close(file);
  EXPECT_EQ(value_of(process_metrics(), "process_open_fds"), before);
}

}  // namespace
}  // namespace invar::server
