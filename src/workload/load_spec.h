// A load: when requests come, how long they are, which policies answer them, how fast an answer has
// to be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace invar {

// When requests come.
struct ArrivalSpec {
  std::string kind = "poisson";  // "poisson", "gamma", "fixed"; "trace": as the trace says
  double rate = 0;               // requests per second; 0: `share` of the capacity that is found
  double share = 0.8;            // of the capacity of the first policy
  double variation = 0.5;        // gamma: standard deviation of an interval by its mean
};

// How many tokens.
struct LengthSpec {
  // "fixed" (low), "uniform", "zipf", "lognormal"; "ratio": answers only
  std::string kind = "uniform";
  int low = 1, high = 1;       // both can come up
  double median = 1, p90 = 2;  // lognormal, before what is beyond low and high is cut off
  double theta = 0.6;          // zipf: low + r comes up in proportion to (r + 1)^-theta
  double ratio = 20;           // tokens of the prompt by tokens of the answer
};

// Recorded requests in place of made ones. A file with the columns num_prefill_tokens and
// num_decode_tokens says how long they are; one that also has arrived_at (seconds), or one with
// Date, Time, PromptTokenCount and CompletionTokenCount, says when they came, too. Columns are
// found by name.
struct TraceSpec {
  std::string file;         // empty: none
  int max_tokens = 4096;    // longer requests shrink in proportion
  double time_scale = 1;    // recorded seconds are multiplied by this
  bool is_shuffled = true;  // with the load's seed; a file with times is not
  double busiest = 0;       // seconds: only the window of that length with most requests; 0: all
};

// The limits of a load that is "under control".
struct LatencyLimits {
  double scheduling_delay_p50 = 2;  // seconds
  double tbt_p99 = 0.2;
};

struct PolicySpec {
  std::string name;
  std::vector<int> budgets = {512};  // rows of a step; the best is used
  int max_num_seqs = 0;              // 0: the load's
};

struct LoadSpec {
  std::string name;
  uint64_t seed = 42;
  int requests = 64;
  ArrivalSpec arrivals;
  LengthSpec prompts, answers;
  TraceSpec trace;
  int max_tokens = 0;  // of a request that is made: longer ones shrink in proportion; 0: any
  LatencyLimits limits;
  int search_requests = 256;  // of each run of the capacity search, at least
  double run_seconds = 480;   // of each run of it on a clock that passes, at most
  std::vector<PolicySpec> policies;
  int max_num_seqs = 128;
  double kv_gib = 2;

  // Tokens of the longest request that can come up.
  int longest() const;
};

// Reads a load from TOML, bench/loads/mixed.toml for example. A trace's path is relative to the
// file's. Throws Error or UsageError naming file, line and key.
LoadSpec read_load(const std::string& path);

}  // namespace invar
