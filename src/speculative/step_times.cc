#include "speculative/step_times.h"

#include <algorithm>
#include <cmath>

namespace invar {

namespace {

constexpr int32_t kMemory = 16;   // steps that a mean remembers
constexpr double kOutlier = 1.5;  // times the mean: a step that was interrupted counts no more
constexpr int32_t kFew = 4;       // steps that may all have been interrupted

}  // namespace

int StepTimes::index_of(int64_t rows) {
  if (rows <= kExact) return static_cast<int>(std::max<int64_t>(rows, 0));
  const double octaves = std::log2(static_cast<double>(rows) / kExact);
  return kExact + std::min(kOctaves * kPerOctave, 1 + static_cast<int>(octaves * kPerOctave));
}

void StepTimes::add(int64_t rows, double seconds) {
  Point& point = points_[index_of(rows)];
  most_rows_ = std::max(most_rows_, rows);
  if (point.count < kFew && kOutlier * seconds < point.seconds) point.count = 0;
  if (point.count > 0) seconds = std::min(seconds, kOutlier * point.seconds);
  point.count = std::min(point.count + 1, kMemory);
  point.rows += (static_cast<double>(rows) - point.rows) / point.count;
  point.seconds += (seconds - point.seconds) / point.count;
}

double StepTimes::at(int64_t rows) const {
  const double x = static_cast<double>(rows);
  const Point *first = nullptr, *below = nullptr, *above = nullptr;
  if (const Point& exact = points_[index_of(rows)]; exact.count > 0 && exact.rows == x)
    return exact.seconds;
  for (const Point& point : points_) {
    if (point.count == 0) continue;
    if (!first) first = &point;
    if (point.rows <= x) below = &point;
    if (point.rows > x && !above) above = &point;
  }
  if (!below) return above ? above->seconds : 0;
  const Point& from = above || below == first ? *below : *first;
  const Point& to = above ? *above : *below;
  const double slope =
      to.rows > from.rows ? (to.seconds - from.seconds) / (to.rows - from.rows) : 0;
  return below->seconds + std::max(0.0, slope) * (x - below->rows);
}

}  // namespace invar
