// The middle of what a benchmark measured.
#pragma once

#include <algorithm>
#include <vector>

namespace invar::cli {

// The upper of the two in the middle where there are two; 0 of nothing.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace invar::cli
