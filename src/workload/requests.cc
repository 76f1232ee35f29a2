#include "workload/requests.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/input_file.h"

namespace invar {

namespace {

using Random = std::mt19937_64;

// Numbers of low + r in proportion to (r + 1)^-theta.
class Zipf {
 public:
  Zipf(const LengthSpec& spec) : low_(spec.low) {
    double sum = 0;
    for (int r = 0; r <= spec.high - spec.low; ++r)
      sums_.push_back(sum += std::pow(r + 1.0, -spec.theta));
  }
  int operator()(Random& random) {
    const double at = std::uniform_real_distribution<double>(0, sums_.back())(random);
    const auto found = std::upper_bound(sums_.begin(), sums_.end() - 1, at);
    return low_ + static_cast<int>(found - sums_.begin());
  }

 private:
  int low_;
  std::vector<double> sums_;
};

void draw_lengths(const LengthSpec& spec, int LoadRequest::*length,
                  std::vector<LoadRequest>& requests, Random& random) {
  if (spec.kind == "zipf") {
    Zipf zipf(spec);
    for (LoadRequest& r : requests) r.*length = zipf(random);
  } else if (spec.kind == "uniform") {
    std::uniform_int_distribution<int> uniform(spec.low, spec.high);
    for (LoadRequest& r : requests) r.*length = uniform(random);
  } else if (spec.kind == "lognormal") {
    constexpr double kNormalP90 = 1.2815515655446004;
    std::lognormal_distribution<double> lognormal(std::log(spec.median),
                                                  std::log(spec.p90 / spec.median) / kNormalP90);
    for (LoadRequest& r : requests)
      r.*length =
          static_cast<int>(std::clamp<double>(std::round(lognormal(random)), spec.low, spec.high));
  } else if (spec.kind == "ratio") {
    for (LoadRequest& r : requests)
      r.answer = std::max(1, static_cast<int>(std::lround(r.prompt / spec.ratio)));
  } else {
    for (LoadRequest& r : requests) r.*length = spec.low;
  }
}

// Seconds between two arrivals, one on average.
double draw_interval(const ArrivalSpec& spec, Random& random) {
  if (spec.kind == "poisson") return std::exponential_distribution<double>(1)(random);
  if (spec.kind == "gamma") {
    const double shape = 1 / (spec.variation * spec.variation);
    return std::gamma_distribution<double>(shape, 1 / shape)(random);
  }
  return 1;
}

// Longer requests shrink in proportion; both parts keep a token.
void shrink(LoadRequest& r, int most) {
  const double sum = double(r.prompt) + r.answer;
  if (sum <= most) return;
  r.prompt = std::clamp(static_cast<int>(r.prompt * (most / sum)), 1, most - 1);
  r.answer = std::clamp(static_cast<int>(r.answer * (most / sum)), 1, most - r.prompt);
}

// The most requests, in order of arrival, that come within a window of `seconds`; from 0 on.
std::vector<LoadRequest> busiest(const std::vector<LoadRequest>& all, double seconds) {
  size_t best = 0, most = 0;
  for (size_t begin = 0, end = 0; begin < all.size(); ++begin) {
    while (end < all.size() && all[end].arrival < all[begin].arrival + seconds) ++end;
    if (end - begin > most) {
      most = end - begin;
      best = begin;
    }
  }
  std::vector<LoadRequest> window(all.begin() + static_cast<std::ptrdiff_t>(best),
                                  all.begin() + static_cast<std::ptrdiff_t>(best + most));
  const double first = window.front().arrival;
  for (LoadRequest& r : window) r.arrival -= first;
  return window;
}

std::vector<LoadRequest> from_trace(const LoadSpec& spec, int count, bool& has_times,
                                    Random& random) {
  TraceTable table = parse_trace(read_whole_file(spec.trace.file), spec.trace.file);
  has_times = table.has_times;
  if (spec.arrivals.kind == "trace" && !has_times)
    fail_usage(
        "{}: expected arrived_at, or Date and Time, for arrivals as in the trace, found lengths "
        "only",
        spec.trace.file);
  if (spec.trace.busiest > 0 && has_times) table.rows = busiest(table.rows, spec.trace.busiest);
  if (std::ssize(table.rows) < count)
    fail_usage("{}: expected at least {} requests, found {}", spec.trace.file, count,
               table.rows.size());
  if (spec.trace.is_shuffled && spec.arrivals.kind != "trace")
    std::shuffle(table.rows.begin(), table.rows.end(), random);
  table.rows.resize(static_cast<size_t>(count));
  for (LoadRequest& r : table.rows) {
    shrink(r, spec.trace.max_tokens);
    r.arrival *= spec.trace.time_scale;
  }
  return std::move(table.rows);
}

}  // namespace

int most_requests(const LoadSpec& spec) {
  constexpr int kMost = 1 << 17;
  if (spec.trace.file.empty()) return kMost;
  const TraceTable table = parse_trace(read_whole_file(spec.trace.file), spec.trace.file);
  const bool is_cut = spec.trace.busiest > 0 && table.has_times;
  return static_cast<int>(
      std::ssize(is_cut ? busiest(table.rows, spec.trace.busiest) : table.rows));
}

std::vector<LoadRequest> make_requests(const LoadSpec& spec, int count, double rate) {
  Random lengths(spec.seed), intervals(spec.seed + 1);
  std::vector<LoadRequest> requests(static_cast<size_t>(count));
  bool has_times = false;
  if (!spec.trace.file.empty()) {
    requests = from_trace(spec, count, has_times, lengths);
  } else {
    draw_lengths(spec.prompts, &LoadRequest::prompt, requests, lengths);
    draw_lengths(spec.answers, &LoadRequest::answer, requests, lengths);
    if (spec.max_tokens > 0)
      for (LoadRequest& r : requests) shrink(r, spec.max_tokens);
  }
  if (spec.arrivals.kind != "trace") {
    double now = 0;
    for (LoadRequest& r : requests) {
      r.arrival = now / rate;
      now += draw_interval(spec.arrivals, intervals);
    }
  } else if (rate > 0 && requests.back().arrival > 0) {
    const double scale = (count - 1) / rate / requests.back().arrival;
    for (LoadRequest& r : requests) r.arrival *= scale;
  }
  return requests;
}

}  // namespace invar
