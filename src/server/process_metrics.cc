#include "process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "exposition.h"

namespace invar::server {

namespace {

// The numbers behind the program's name in /proc/self/stat.
struct Stat {
  double cpu_seconds = 0, start_seconds = 0, virtual_bytes = 0, resident_bytes = 0;
};

std::optional<Stat> read_stat() {
  std::ifstream file("/proc/self/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t end = text.rfind(')');
  if (end == text.npos) return std::nullopt;
  std::istringstream rest(text.substr(end + 2));
  const std::vector<std::string> fields(std::istream_iterator<std::string>(rest), {});
  if (fields.size() < 22) return std::nullopt;
  const auto number = [&](size_t field) { return std::stod(fields[field - 3]); };  // from proc(5)
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return Stat{.cpu_seconds = (number(14) + number(15)) / ticks,
              .start_seconds = number(22) / ticks,
              .virtual_bytes = number(23),
              .resident_bytes = number(24) * static_cast<double>(::sysconf(_SC_PAGESIZE))};
}

// When the machine began, in seconds since 1970.
std::optional<double> boot_seconds() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;)
    if (double seconds = 0; word == "btime" && file >> seconds) return seconds;
  return std::nullopt;
}

std::optional<double> open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return std::nullopt;
  return static_cast<double>(std::distance(begin(files), end(files)));
}

}  // namespace

std::string process_metrics() {
  Exposition out("");
  if (const auto stat = read_stat()) {
    out.counter("process_cpu_seconds_total", "CPU time of the server's process.",
                stat->cpu_seconds);
    out.gauge("process_resident_memory_bytes", "Its memory that is in RAM.", stat->resident_bytes);
    out.gauge("process_virtual_memory_bytes", "Its address space.", stat->virtual_bytes);
    if (const auto boot = boot_seconds())
      out.gauge("process_start_time_seconds", "When it began, in seconds since 1970.",
                *boot + stat->start_seconds);
  }
  if (const auto files = open_files())
    out.gauge("process_open_fds", "Files that it has open.", *files);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    out.gauge("process_max_fds", "How many it may have open.", static_cast<double>(limit.rlim_cur));
  return out.take();
}

}  // namespace invar::server
