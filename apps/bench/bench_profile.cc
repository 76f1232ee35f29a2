// invar bench model --profile: the time of each operation beside what bounds it.
#include <fmt/format.h>

#include <algorithm>

#include "bench_model.h"

namespace invar::cli {

namespace {

// The width of the feed-forward networks that a row goes through in a layer, together.
double width_of_row(const LayerSpec& layer) {
  if (!layer.experts()) return layer.ffn_width();
  const ExpertsSpec& experts = *layer.experts();
  return double(experts.routing.chosen) * experts.width + experts.shared_width;
}

// The work that bounds a step: `rows` rows with one row of logits each where `logits` says so,
// which see `places` places in all and read `cached` places of the cache.
struct StepWork {
  double rows, logits, places, cached;
};

// The least seconds that an operation can take, 0 where neither products nor weights bound it.
double least_seconds(std::string_view operation, const DecoderSpec& s, const StepWork& w,
                     double peak, double bandwidth) {
  const auto product = [&](double rows, double n, double k) {
    return std::max(2 * rows * n * k / peak, 2 * n * k / bandwidth);
  };
  const double query = s.query_width(), kv = s.kv_width(), ffn = s.layer(0).ffn_width();
  if (operation == "qkv") return s.layers * product(w.rows, query + 2 * kv, s.hidden);
  if (operation == "o") return s.layers * product(w.rows, s.hidden, query);
  if (operation == "gated") return s.layers * product(w.rows, 2.0 * ffn, s.hidden);
  if (operation == "down") return s.layers * product(w.rows, s.hidden, ffn);
  if (operation == "logits") return product(w.logits, s.vocab, s.hidden);
  if (operation == "attention")
    return s.layers * std::max(4 * query * w.places / peak, 4 * kv * w.cached / bandwidth);
  return 0;
}

void print_profile(std::string_view title, const OperationTimes& times, const Seconds& seconds,
                   int steps, const DecoderSpec& spec, const StepWork& work, double peak,
                   double bandwidth) {
  const double step = (seconds.decode_steps > 0 ? seconds.decode : seconds.total) / steps;
  fmt::print("\n  {}, one step {:.2f} ms\n", title, 1e3 * step);
  double rest = step;
  for (const OperationTimes::Entry& entry : times.entries()) {
    const double own = entry.seconds / steps,
                 least = least_seconds(entry.name, spec, work, peak, bandwidth);
    rest -= own;
    fmt::print("    {:24} {:10.2f} ms  {:5.1f} % {}\n", entry.name, 1e3 * own, 100 * own / step,
               least > 0 ? fmt::format("  {:5.1f} % of its limit", 100 * least / own) : "");
  }
  fmt::print("    {:24} {:10.2f} ms  {:5.1f} %\n", "the rest", 1e3 * rest, 100 * rest / step);
}

}  // namespace

double prefill_operations(const DecoderSpec& s, double n) {
  double per_token = 0;
  for (const LayerSpec& layer : s.layer_specs) {
    per_token += double(s.hidden) * (s.query_width() + 2.0 * s.kv_width()) +
                 double(s.query_width()) * s.hidden + 3.0 * s.hidden * width_of_row(layer);
    if (layer.experts()) per_token += double(s.hidden) * layer.experts()->routing.experts;
  }
  const double attention = s.layers * 2.0 * s.query_width() * n * (n + 1) / 2;
  return 2 * (per_token * n + attention + double(s.hidden) * s.vocab);
}

void print_profiles(const std::shared_ptr<Model>& model, const ModelBenchFlags& flags, double peak,
                    double bandwidth) {
  const DecoderSpec& spec = model->spec();
  OperationTimes times;
  Seconds seconds = run_requests(model, 1, 512, 1, 512, flags.async_scheduling, &times);
  print_profile("prefill 512", times, seconds, 1, spec, {512, 1, 512 * 513 / 2, 512}, peak,
                bandwidth);
  for (const int batch : {1, 32}) {
    times = {};
    seconds = run_requests(model, batch, 16, 128, 512, flags.async_scheduling, &times);
    const double places = batch * (16 + 64.5);
    print_profile(fmt::format("decode, batch {}", batch), times, seconds, seconds.decode_steps,
                  spec, {double(batch), double(batch), places, places}, peak, bandwidth);
  }
}

}  // namespace invar::cli
