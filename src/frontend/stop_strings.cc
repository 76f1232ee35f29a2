#include "frontend/stop_strings.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

StopStrings::StopStrings(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {
  for (const std::string& stop : stops_)
    if (stop.empty())
      fail_usage("expected stop strings of at least one character, found an empty one");
}

bool StopStrings::push(std::string_view piece, std::string& out) {
  held_ += piece;
  // The stop that ends first counts; of two that end together the longer one.
  size_t best_end = std::string::npos, best_begin = 0;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < best_end || (end == best_end && begin < best_begin))
      best_end = end, best_begin = begin;
  }
  if (best_end != std::string::npos) {
    found_ = held_.substr(best_begin, best_end - best_begin);
    out.append(held_, 0, include_ ? best_end : best_begin);
    held_.clear();
    return true;
  }
  size_t keep = 0;  // the longest end of the text that begins a stop string
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopStrings::finish(std::string& out) {
  out += held_;
  held_.clear();
}

}  // namespace invar
