// Counters and histograms for /metrics, under the names of vLLM's dashboards.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "backend.h"
#include "histogram.h"
#include "step_log.h"

namespace invar::server {

using Clock = std::chrono::steady_clock;

// The times of one request; a time that did not come is zero.
struct RequestTimes {
  Clock::time_point arrival{}, scheduled{}, first_token{}, last_token{}, end{};
};

// Used by one thread.
struct Metrics {
  Metrics();

  Histogram time_to_first_token, inter_token, end_to_end;  // seconds
  Histogram queue, prefill, decode, inference, per_output_token;
  Histogram prompt_tokens, generation_tokens, max_tokens;  // of a request
  Histogram most_generation_tokens;                        // of the longest of a request's answers
  Histogram answers;                                       // n of a request
  RecentValues recent_first_token, recent_inter_token, recent_end_to_end;
  std::map<std::string, int64_t> finished;  // requests, by reason
  std::map<int, int64_t> refused;           // requests, by status
  int64_t all_prompt_tokens = 0, all_generation_tokens = 0;

  // A request is over that got so many tokens.
  void add(const RequestTimes& times, int64_t tokens);

  std::string text(const std::string& model, const BackendFacts& facts, const BackendStats& stats,
                   const StepTotals& steps, size_t connections, size_t answers) const;

 private:
  void print_requests(class Exposition& out) const;
};

}  // namespace invar::server
