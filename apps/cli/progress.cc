// The line on the error stream that says how far a command is.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "command.h"

namespace invar::cli {

namespace {

constexpr int kBar = 24;                     // characters
constexpr double kSecondsBeforeARate = 0.2;  // what came before tells little

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

ProgressLine::ProgressLine(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO)) {}

void ProgressLine::show(std::string_view text) {
  if (!enabled_) return;
  std::fprintf(stderr, "\r%.*s%*s", static_cast<int>(text.size()), text.data(),
               static_cast<int>(width_ > text.size() ? width_ - text.size() : 0), "");
  std::fflush(stderr);
  width_ = text.size();
}

void ProgressLine::clear() {
  if (width_ == 0) return;
  std::fprintf(stderr, "\r%*s\r", static_cast<int>(width_), "");
  std::fflush(stderr);
  width_ = 0;
}

void ProgressLine::show_share(std::string_view what, double done, double total,
                              std::string_view unit) {
  if (!enabled_) return;
  if (what_ != what) what_ = what, start_ = Timer();
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  const auto full = static_cast<size_t>(share * kBar);
  std::string text =
      fmt::format("{} [{}{}] {:3.0f} %  {:.0f} of {:.0f} {}", what, std::string(full, '#'),
                  std::string(kBar - full, '-'), 100 * share, done, total, unit);
  const double seconds = start_.seconds();
  if (done > 0 && seconds > kSecondsBeforeARate) {
    const double rate = done / seconds;
    text += fmt::format(", {:.{}f} {}/s, {} left", rate, rate < 10 ? 1 : 0, unit,
                        clock_text((total - done) / rate));
  }
  show(text);
}

}  // namespace invar::cli
