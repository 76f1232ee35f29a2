// A server's metrics from a load's answers, with vLLM's definitions: TTFT is the time from sending
// to the first event with text, TPOT (last text - first text) / (tokens - 1), ITL each gap between
// events with text, E2EL the time from sending to the last text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "load_client.h"

namespace invar::cli {

struct ServeAnswer {
  std::string error;  // empty: complete
  std::string text;
  int64_t prompt_tokens = 0, output_tokens = 0;
  double sent = 0;            // seconds after the beginning
  double ttft = 0, e2el = 0;  // seconds
  std::vector<double> gaps;   // between events with text
  bool same_prompt = false;   // one of those that ask the same

  double tpot() const {
    return output_tokens > 1 ? (e2el - ttft) / static_cast<double>(output_tokens - 1) : 0;
  }
};

// Reads the events of /v1/completions or /v1/chat/completions.
ServeAnswer read_answer(const LoadResult& result);

// The percentile of sorted or unsorted values, with linear interpolation; 0 where there are none.
// `percent` is from 0 to 100.
double interpolated_percentile(std::vector<double> values, double percent);

// Different answers to one prompt.
struct Uniqueness {
  size_t asked = 0;   // complete answers
  size_t unique = 0;  // different texts among them
  size_t commonest = 0;
  std::optional<size_t> first_difference;  // bytes that all have in common, when they differ
};
Uniqueness uniqueness(const std::vector<ServeAnswer>& answers);

struct ServeLoad {
  std::vector<ServeAnswer> answers;
  double duration = 0;                // seconds from the first request to the last answer
  double client_cpu = 0;              // seconds of this process in that time
  double device_idle = 0;             // seconds of the server's GPU in that time; 0: not said
  std::map<std::string, double> slo;  // "ttft", "tpot", "e2el": milliseconds
  std::vector<double> percentiles;
};

struct Series {
  std::string name, title;     // "ttft", "Time to first token"
  std::vector<double> values;  // milliseconds
};
std::vector<Series> series_of(const ServeLoad& load);

// Times at which the number of requests under way changed, with that number.
std::vector<std::pair<double, double>> under_way(const ServeLoad& load);

// vLLM's keys; `detailed` adds every request's numbers and text.
json::Value metrics_of(const ServeLoad& load, bool detailed);

// A page of its own with the numbers as a table and their distributions as SVG.
std::string serve_page(const ServeLoad& load, const json::Value& about, const json::Value& metrics);

}  // namespace invar::cli
