#include "workload/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plot/plot.h"

namespace invar {

namespace {

constexpr int kPieces = 240;  // of a run's time in a picture

std::string row(const char* cell, const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (const std::string& text : cells)
    out += fmt::format("<{0}>{1}</{0}>", cell, escape_xml(text));
  return out + "</tr>\n";
}

std::string ms(double seconds) {
  return fmt::format("{:.1f}", 1e3 * seconds);
}
std::string three(const Percentiles& p) {
  return fmt::format("{:.1f} / {:.1f} / {:.1f}", 1e3 * p.p50, 1e3 * p.p90, 1e3 * p.p99);
}

std::string about_clock(const std::string& clock) {
  if (clock == "real") return "the wall's clock";
  if (clock == "cpu")
    return "processor time of the engine's one thread: other users of the machine do not count";
  return "a cost model of measured steps: the scheduler runs, the model does not";
}

std::string verdict(const CapacityPoint& point) {
  return point.is_within ? "within" : point.is_saturated ? "saturated" : "beyond";
}

std::string latency_table(const LoadReport& report) {
  std::string out =
      "<table>\n" + row("th", {"policy", "rows of a step", "requests/s", "answer tokens/s",
                               "TTFT ms, P50 / P90 / P99", "TBT ms, P50 / P90 / P99",
                               "longest gap ms", "scheduling delay ms, P50 / P90 / P99"});
  for (const PolicyReport& p : report.policies) {
    const LoadSummary& s = p.summary;
    out +=
        row("td", {p.policy, fmt::to_string(p.budget), fmt::format("{:.3f}", s.requests_per_second),
                   fmt::format("{:.1f}", s.answer_tokens_per_second), three(s.ttft), three(s.tbt),
                   ms(s.longest_gap), three(s.scheduling_delay)});
  }
  return out + "</table>\n";
}

std::string composition_table(const LoadReport& report) {
  std::string out = "<table>\n" + row("th", {"policy", "steps", "prompt rows", "decode rows",
                                             "both kinds", "running", "waiting", "preempted",
                                             "step with prompts ms", "step without ms"});
  for (const PolicyReport& p : report.policies) {
    const LoadSummary& s = p.summary;
    out += row("td",
               {p.policy, fmt::to_string(s.steps), fmt::format("{:.1f}", s.prompt_rows),
                fmt::format("{:.1f}", s.decode_rows), fmt::format("{:.1f} %", 100 * s.mixed_share),
                fmt::format("{:.1f}", s.running), fmt::format("{:.1f}", s.waiting),
                fmt::to_string(s.preempted), ms(s.prompt_step), ms(s.decode_step)});
  }
  return out + "</table>\n";
}

std::string capacity_table(const LoadReport& report, size_t slo) {
  std::string out = "<table>\n" + row("th", {"policy", "rows of a step", "capacity, requests/s",
                                             "runs", "first beyond: delay P50 s, TBT P99 ms",
                                             "on the clock, below and above"});
  for (const PolicyReport& p : report.policies)
    for (const PolicyReport::Search& search : p.searches) {
      if (search.slo != slo) continue;
      const CapacityPoint* beyond = nullptr;  // the nearest
      for (const CapacityPoint& point : search.capacity.points)
        if (!point.is_within && (!beyond || point.rate < beyond->rate)) beyond = &point;
      std::string sides;
      for (const CapacityPoint& side : search.sides)
        sides += fmt::format("{}{:.3f}: {}", sides.empty() ? "" : "; ", side.rate, verdict(side));
      out += row(
          "td",
          {p.policy, fmt::to_string(search.budget), fmt::format("{:.3f}", search.capacity.rate),
           fmt::to_string(search.capacity.points.size()),
           beyond ? fmt::format("{:.2f}, {:.1f}{}", beyond->scheduling_delay_p50,
                                1e3 * beyond->tbt_p99, beyond->is_saturated ? ", saturated" : "")
                  : "none: the load is too short",
           sides});
    }
  return out + "</table>\n";
}

// Capacities by SLO: the best budget of each policy, and how many times the others' the first
// policy's is.
std::string capacities(const LoadReport& report) {
  std::string out = fmt::format(
      "<h2>Capacity</h2>\n<p>The highest rate with a P50 scheduling delay of at most {} s and a "
      "P99 "
      "TBT of at most the SLO; no run of it is saturated. {} requests a run or more, until it is "
      "10 "
      "times as long as an answer. Seconds are {}.</p>\n",
      report.spec.limits.scheduling_delay_p50, report.spec.search_requests,
      about_clock(report.search_clock));
  for (size_t slo = 0; slo < report.slos.size(); ++slo)
    out += fmt::format("<h3>P99 TBT of at most {:.1f} ms ({})</h3>\n",
                       1e3 * report.slos[slo].tbt_p99, escape_xml(report.slos[slo].name)) +
           capacity_table(report, slo);
  return out;
}

std::string check_table(const CostCheck& check) {
  std::string out = fmt::format("<p>Three loads of {} with {} rows, model / clock:</p>\n<table>\n",
                                check.policy, check.budget) +
                    row("th", {"rate", "requests", "requests/s", "delay P50 ms", "TBT P99 ms", ""});
  for (const CostCheck::Point& p : check.points)
    out +=
        row("td", {fmt::format("{:.3f}", p.rate), fmt::to_string(p.requests),
                   fmt::format("{:.3f} / {:.3f}", p.model.requests_per_second,
                               p.measured.requests_per_second),
                   ms(p.model.scheduling_delay.p50) + " / " + ms(p.measured.scheduling_delay.p50),
                   ms(p.model.tbt.p99) + " / " + ms(p.measured.tbt.p99),
                   p.agrees() ? "agrees" : "differs"});
  return out + "</table>\n";
}

// Milliseconds between tokens by percentile.
std::string gaps_picture(const LoadReport& report) {
  std::vector<Curve> curves;
  for (const PolicyReport& p : report.policies) {
    std::vector<double> gaps = p.run.gaps;
    std::sort(gaps.begin(), gaps.end());
    Curve curve{p.policy, {}};
    for (int quarter = 200; quarter <= 400 && !gaps.empty(); ++quarter) {
      const double rank = std::ceil(quarter / 400.0 * static_cast<double>(gaps.size()));
      curve.points.emplace_back(quarter / 4.0, 1e3 * gaps[static_cast<size_t>(rank) - 1]);
    }
    curves.push_back(std::move(curve));
  }
  return plot_svg({.title = "Time between tokens",
                   .x_title = "percentile",
                   .y_title = "time (ms)",
                   .curves = std::move(curves),
                   .logarithmic = true});
}

// Rows of the steps along a run: means over short pieces of its time.
std::string batches_picture(const PolicyReport& p) {
  Curve decode{"decode rows", {}}, prompt{"prompt rows", {}}, running{"running", {}};
  const double end = p.run.steps.empty() ? 0 : p.run.steps.back().end;
  size_t next = 0;
  for (int piece = 0; piece < kPieces; ++piece) {
    const double until = end * (piece + 1) / kPieces;
    double prompt_rows = 0, decode_rows = 0, sequences = 0;
    int steps = 0;
    for (; next < p.run.steps.size() && p.run.steps[next].end <= until; ++next, ++steps) {
      prompt_rows += p.run.steps[next].work.prompt_rows;
      decode_rows += p.run.steps[next].work.decode_rows;
      sequences += p.run.steps[next].running;
    }
    if (steps == 0) continue;
    prompt.points.emplace_back(until, prompt_rows / steps);
    decode.points.emplace_back(until, decode_rows / steps);
    running.points.emplace_back(until, sequences / steps);
  }
  return plot_svg({.title = p.policy + ": rows of a step and running sequences",
                   .x_title = "time (s)",
                   .y_title = "rows, sequences",
                   .curves = {decode, prompt, running},
                   .from_zero = true});
}

json::Value to_json(const Percentiles& p) {
  return json::Object{{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

json::Value to_json(const LoadSummary& s) {
  return json::Object{{"ttft", to_json(s.ttft)},
                      {"tbt", to_json(s.tbt)},
                      {"scheduling_delay", to_json(s.scheduling_delay)},
                      {"longest_gap", s.longest_gap},
                      {"seconds", s.seconds},
                      {"requests_per_second", s.requests_per_second},
                      {"tokens_per_second", s.tokens_per_second},
                      {"answer_tokens_per_second", s.answer_tokens_per_second},
                      {"steps", s.steps},
                      {"prompt_rows", s.prompt_rows},
                      {"decode_rows", s.decode_rows},
                      {"mixed_share", s.mixed_share},
                      {"running", s.running},
                      {"waiting", s.waiting},
                      {"preempted", s.preempted},
                      {"idle_share", s.idle_share},
                      {"answer_seconds", s.answer},
                      {"backlog_growth", s.backlog_growth},
                      {"saturated", s.is_saturated()},
                      {"balanced", s.is_balanced()},
                      {"step_with_prompts", s.prompt_step},
                      {"step_without_prompts", s.decode_step}};
}

json::Array to_json(const std::vector<CapacityPoint>& all) {
  json::Array points;
  for (const CapacityPoint& p : all)
    points.push_back(json::Object{{"rate", p.rate},
                                  {"scheduling_delay_p50", p.scheduling_delay_p50},
                                  {"tbt_p99", p.tbt_p99},
                                  {"requests_per_second", p.requests_per_second},
                                  {"saturated", p.is_saturated},
                                  {"within", p.is_within}});
  return points;
}

json::Value to_json(const Capacity& capacity) {
  return json::Object{{"rate", capacity.rate},
                      {"bounded", capacity.is_bounded},
                      {"points", to_json(capacity.points)}};
}

json::Value to_json(const CostCheck& check) {
  json::Array points;
  for (const CostCheck::Point& p : check.points)
    points.push_back(json::Object{{"rate", p.rate},
                                  {"requests", p.requests},
                                  {"model", to_json(p.model)},
                                  {"measured", to_json(p.measured)},
                                  {"agrees", p.agrees()}});
  return json::Object{{"policy", check.policy},
                      {"budget", check.budget},
                      {"points", std::move(points)},
                      {"agrees", check.agrees()}};
}

}  // namespace

const PolicyReport* LoadReport::find(std::string_view policy) const {
  for (const PolicyReport& p : policies)
    if (p.policy == policy) return &p;
  return nullptr;
}

PolicyReport::Search* PolicyReport::best(size_t slo) {
  Search* best = nullptr;
  for (Search& s : searches)
    if (s.slo == slo && (!best || s.capacity.rate > best->capacity.rate)) best = &s;
  return best;
}

const PolicyReport::Search* PolicyReport::best(size_t slo) const {
  return const_cast<PolicyReport*>(this)->best(slo);
}

std::vector<std::string> warnings_of(const LoadReport& report) {
  std::vector<std::string> warnings;
  if (!report.check.agrees()) {
    const bool is_searched = !report.search_clock.empty() && report.search_clock != "model";
    warnings.push_back(
        "The cost model is not within 10 % of the clock at every rate that was tried" +
        (is_searched
             ? fmt::format(": the capacities were searched on the clock {}.", report.search_clock)
             : std::string(".")));
  }
  for (const PolicyReport& p : report.policies) {
    if (p.summary.is_saturated())
      warnings.push_back(
          fmt::format("The run of {} is saturated: {:.0f} % of the rows that come are left over.",
                      p.policy, 100 * p.summary.backlog_growth));
    else if (!p.summary.is_balanced())
      warnings.push_back(
          fmt::format("The run of {} is not in balance: requests come for {:.1f} s, and an answer "
                      "takes {:.1f} s.",
                      p.policy, p.summary.arrivals, p.summary.answer));
  }
  return warnings;
}

std::string compare_stalls(const LoadReport& report) {
  const PolicyReport *sarathi = report.find("sarathi"), *vllm = report.find("vllm");
  if (!sarathi || !vllm) return {};
  const LoadSummary &s = sarathi->summary, &v = vllm->summary;
  const double times = v.tbt.p99 / s.tbt.p99;
  return fmt::format(
      "P99 TBT of sarathi is {:.1f} ms, {:.1f} x {} than vllm's {:.1f} ms, at {:.3f} and {:.3f} "
      "requests/s: a step with prompt rows takes {:.1f} ms on average with sarathi, {:.1f} ms with "
      "vllm.",
      1e3 * s.tbt.p99, times >= 1 ? times : 1 / times, times >= 1 ? "lower" : "higher",
      1e3 * v.tbt.p99, s.requests_per_second, v.requests_per_second, 1e3 * s.prompt_step,
      1e3 * v.prompt_step);
}

std::string to_html(const LoadReport& report) {
  const LoadSpec& spec = report.spec;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>Load {0}</title>\n"
      "<style>body{{font-family:system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 "
      "1em}}"
      "table{{border-collapse:collapse;margin:1em 0}}td,th{{border:1px solid #8885;padding:4px 8px;"
      "text-align:right;font-size:13px}}td:first-child,th:first-child{{text-align:left}}"
      "svg{{max-width:100%;height:auto}}</style>\n<h1>Load {0}</h1>\n",
      escape_xml(spec.name));
  out += fmt::format("<p>{}.<br>{}.</p>\n", escape_xml(report.model), escape_xml(report.machine));
  out += fmt::format(
      "<p>{} requests, {:.4f} per second for every policy, arrivals {}, seed {}. Seconds are "
      "{}.</p>\n",
      spec.requests, report.rate, escape_xml(spec.arrivals.kind), spec.seed,
      about_clock(report.clock));
  if (const std::string sentence = compare_stalls(report); !sentence.empty())
    out += fmt::format("<p><b>{}</b></p>\n", escape_xml(sentence));
  for (const std::string& warning : warnings_of(report))
    out += fmt::format("<p>{}</p>\n", escape_xml(warning));
  out += "<h2>What users see</h2>\n" + latency_table(report) + gaps_picture(report);
  out += "<h2>What the steps are made of</h2>\n<p>Means over the steps of a run.</p>\n" +
         composition_table(report);
  for (const PolicyReport& p : report.policies) out += batches_picture(p);
  if (!report.search_clock.empty()) out += capacities(report);
  if (report.cost) {
    out += fmt::format(
        "<h2>The cost model beside the clock</h2>\n<p>Fitted to {} steps, off by {:.1f} % of a "
        "step in the mean.</p>\n<table>\n",
        report.cost->steps, 100 * report.cost->error);
    out += row("th", {"policy", "seconds of all steps", "predicted"});
    for (const PolicyReport& p : report.policies) {
      double seconds = 0;
      for (const LoadStep& step : p.run.steps) seconds += step.end - step.begin;
      out += row("td", {p.policy, fmt::format("{:.1f}", seconds),
                        fmt::format("{:.1f}", p.predicted_seconds)});
    }
    out += "</table>\n";
    if (!report.check.points.empty()) out += check_table(report.check);
  }
  return out + "</html>\n";
}

json::Value to_json(const LoadReport& report) {
  json::Array policies;
  for (const PolicyReport& p : report.policies) {
    json::Array searches;
    for (const PolicyReport::Search& search : p.searches)
      searches.push_back(json::Object{{"budget", search.budget},
                                      {"slo", search.slo},
                                      {"capacity", to_json(search.capacity)},
                                      {"sides", to_json(search.sides)}});
    policies.push_back(json::Object{{"policy", p.policy},
                                    {"budget", p.budget},
                                    {"searches", std::move(searches)},
                                    {"run", to_json(p.summary)},
                                    {"predicted_seconds", p.predicted_seconds}});
  }
  json::Value v = json::Object{{"load", report.spec.name},
                               {"model", report.model},
                               {"machine", report.machine},
                               {"clock", report.clock},
                               {"search_clock", report.search_clock},
                               {"requests", report.spec.requests},
                               {"rate", report.rate},
                               {"policies", std::move(policies)}};
  json::Array slos, warnings;
  for (const Slo& slo : report.slos)
    slos.push_back(json::Object{{"name", slo.name}, {"tbt_p99", slo.tbt_p99}});
  for (const std::string& warning : warnings_of(report)) warnings.push_back(warning);
  v.set("slos", std::move(slos));
  v.set("warnings", std::move(warnings));
  if (report.cost) v.set("cost_model", report.cost->to_json());
  if (!report.check.points.empty()) v.set("cost_check", to_json(report.check));
  return v;
}

}  // namespace invar
