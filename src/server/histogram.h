// Counts of values by their size.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace invar::server {

class Histogram {
 public:
  // `bounds` ascending, without infinity.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  // Its lines in Prometheus' text form.
  void print(const std::string& name, const std::string& labels, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

}  // namespace invar::server
