// Recent times of steps on this machine, by their rows. A table, not a line: the first rows of a
// step share one reading of the weights and are almost free, later ones cost their products.
#pragma once

#include <array>
#include <cstdint>

namespace invar {

class StepTimes {
 public:
  void add(int64_t rows, double seconds);
  // Between measured numbers of rows on the line between them; above the last one the mean slope
  // goes on, with one point as if further rows were free. 0 without points.
  double at(int64_t rows) const;
  // The most rows of all steps added; 0: none.
  int64_t most_rows() const { return most_rows_; }

 private:
  // Exact up to 16 rows; then 8 to each power of two.
  struct Point {
    double rows = 0, seconds = 0;
    int32_t count = 0;
  };
  static constexpr int kExact = 16, kOctaves = 9, kPerOctave = 8;

  static int index_of(int64_t rows);

  std::array<Point, kExact + 1 + kOctaves * kPerOctave> points_;
  int64_t most_rows_ = 0;
};

}  // namespace invar
