// Counters and histograms in Prometheus' text form, under the names of vLLM's dashboards.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "backend.h"

namespace invar::server {

class Histogram {
 public:
  // `bounds` ascending, without infinity.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  void print(const std::string& name, const char* help, const std::string& labels,
             std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

using Clock = std::chrono::steady_clock;

// Used by one thread.
struct Metrics {
  Metrics();

  Histogram time_to_first_token, inter_token, end_to_end;  // seconds
  Histogram prompt_tokens, generation_tokens;              // of a request
  std::map<std::string, int64_t> finished;                 // requests, by reason
  std::map<int, int64_t> refused;                          // requests, by status
  int64_t all_prompt_tokens = 0, all_generation_tokens = 0;

  std::string text(const std::string& model, const BackendStats& stats, size_t connections,
                   size_t answers) const;
};

}  // namespace invar::server
