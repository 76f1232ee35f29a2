// invar bench model --sweep: many batch sizes and prompt lengths, the baseline in turn.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "bench_model.h"
#include "median.h"

namespace invar::cli {

namespace {

constexpr int kChunkRows = 8192;  // of a step: longer prompts take several

// Tokens per second of one batch or one prompt, by round; `control` stays empty where it is left
// out.
struct SweepRates {
  std::vector<double> own, control;
};

void print_sweep_row(const std::string& what, const SweepRates& rates) {
  if (rates.control.empty()) return fmt::print("  {:20} {:10.1f}\n", what, median(rates.own));
  std::vector<double> ratios;
  for (size_t i = 0; i < rates.own.size(); ++i) ratios.push_back(rates.own[i] / rates.control[i]);
  fmt::print("  {:20} {:10.1f} {:10.1f}   {:6.1f} % of control\n", what, median(rates.own),
             median(rates.control), 100 * median(ratios));
}

// Whether so many tokens are more than the model has positions for; says so.
bool is_left_out(const ModelBenchFlags& flags, const Model& model, const std::string& what,
                 int64_t tokens) {
  const int most = model.spec().max_positions;
  if (tokens > most && !flags.model.json)
    fmt::print("  {:20} left out: {} tokens, where the model has {} positions\n", what, tokens,
               most);
  return tokens > most;
}

}  // namespace

int run_sweep(const ModelBenchFlags& flags, ModelOptions options) {
  const std::shared_ptr<Model> own = open_model({.model = options});
  std::shared_ptr<Model> control;
  if (!flags.alone) {
    options.arithmetic = "control";
    control = open_model({.model = options});
  }
  if (!flags.model.json)
    fmt::print("{}, {}{}, decoding behind {} tokens, medians of {} rounds, tok/s\n\n",
               options.model, own->identity(), control ? " and control in turn" : "", flags.behind,
               flags.rounds);
  json::Array rows;
  const auto measure_row = [&](const std::string& what,
                               FunctionRef<double(const std::shared_ptr<Model>&)> rate) {
    SweepRates rates;
    for (int round = 0; round < flags.rounds; ++round) {
      rates.own.push_back(rate(own));
      if (control) rates.control.push_back(rate(control));
    }
    json::Value row = json::Object{{"what", what}, {"tokens_per_second", median(rates.own)}};
    if (control) row.set("control_tokens_per_second", median(rates.control));
    rows.push_back(std::move(row));
    if (!flags.model.json) print_sweep_row(what, rates);
    std::fflush(stdout);
  };
  for (const int batch : flags.batches) {
    const std::string what = fmt::format("decode, batch {}", batch);
    const int64_t tokens = int64_t{batch} * flags.behind;
    const int rows = static_cast<int>(std::clamp<int64_t>(tokens, 512, kChunkRows));
    // So many steps bring prompts; the first sequence still decodes when the last one begins.
    const int64_t answer = 24 + tokens / rows;
    if (is_left_out(flags, *own, what, flags.behind + answer)) continue;
    measure_row(what, [&](const std::shared_ptr<Model>& model) {
      const Seconds seconds = run_requests(model, batch, flags.behind, static_cast<int>(answer),
                                           rows, flags.async_scheduling);
      return batch * seconds.decode_steps / seconds.decode;
    });
  }
  for (const int length : flags.prompts) {
    const std::string what = fmt::format("prefill {}", length);
    if (is_left_out(flags, *own, what, int64_t{length} + 1)) continue;
    measure_row(what, [&](const std::shared_ptr<Model>& model) {
      const int rows = std::min(length, kChunkRows);
      return length / run_requests(model, 1, length, 1, rows, flags.async_scheduling).total;
    });
  }
  if (flags.model.json)
    fmt::print("{}\n", json::dump(json::Object{{"model", options.model},
                                               {"identity", own->identity()},
                                               {"rounds", flags.rounds},
                                               {"behind", flags.behind},
                                               {"rows", std::move(rows)}},
                                  2));
  return 0;
}

void check_sweep(const ModelBenchFlags& flags) {
  if (flags.profile || flags.against_control || !flags.sets.empty() ||
      flags.model.options.arithmetic == "control")
    fail_usage(
        "--sweep measures one instruction set and the baseline: leave out --sets, "
        "--against-control, --profile and --arith control");
  for (const int n : flags.batches)
    if (n < 1) fail_usage("expected --batches of 1 or more sequences, found {}", n);
  for (const int n : flags.prompts)
    if (n < 1) fail_usage("expected --prompts of 1 or more tokens, found {}", n);
  if (flags.behind < 1) fail_usage("expected --behind of 1 or more tokens, found {}", flags.behind);
}

}  // namespace invar::cli
