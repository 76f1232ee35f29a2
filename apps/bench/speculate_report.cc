#include "speculate_report.h"

#include <fmt/format.h>

#include <cmath>

#include "plot/plot.h"

namespace invar::cli {

namespace {

double share(int64_t part, int64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string shown(double value, const char* format) {
  return value > 0 ? fmt::format(fmt::runtime(format), value) : "";
}

std::string name_of_config(const std::string& config) {
  return config.empty() ? "plain" : config;
}

// Tokens per second over plain decoding by batch, a curve for each way.
std::string curves(const std::vector<SpeculateRow>& rows, const std::string& task) {
  std::vector<Curve> curves;
  for (const SpeculateRow& row : rows) {
    if (row.task != task || row.config.empty()) continue;
    auto curve = std::ranges::find(curves, row.config, &Curve::name);
    if (curve == curves.end()) curve = curves.insert(curves.end(), {row.config, {}});
    curve->points.emplace_back(row.batch, row.over_plain);
  }
  return plot_svg({.title = "Speed over plain decoding: " + task,
                   .x_title = "sequences at the same time",
                   .y_title = "tokens per second over plain (x)",
                   .curves = std::move(curves),
                   .from_zero = true});
}

constexpr const char* kReportHead =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
    "<meta name=\"color-scheme\" content=\"light dark\"><title>invar bench speculate</title>"
    "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:90em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.1em 1em .1em 0;text-align:right;"
    "border-bottom:1px solid #8885;font-variant-numeric:tabular-nums}"
    "td:last-child,th:last-child{text-align:left}svg{max-width:100%;height:auto}</style>"
    "<h1>invar bench speculate</h1>";

}  // namespace

double SpeculateRow::accepted_length() const {
  return 1 + share(total.accepted, total.drafts);
}

double SpeculateRow::acceptance() const {
  return share(total.accepted, total.draft_tokens);
}

double SpeculateRow::right_behind_right() const {
  return share(total.accepted, total.tried);
}

double SpeculateRow::mean_draft() const {
  return share(total.draft_tokens, total.drafts);
}

double SpeculateRow::predicted_over_plain(double plain_predicted) const {
  return plain_predicted > 0 ? total.predicted_rate() / plain_predicted : 0;
}

double SpeculateRow::paper_over_plain() const {
  if (total.drafts == 0 || plain_step == 0) return 0;
  const double a = std::min(right_behind_right(), 0.9999), k = mean_draft();
  const double c = total.mean_draft_seconds() * batch / plain_step;
  return (1 - std::pow(a, k + 1)) / ((1 - a) * (c * k + 1));
}

json::Value to_json(const SpeculateRow& row, double plain_predicted) {
  return json::Object{{"task", row.task},
                      {"batch", row.batch},
                      {"config", row.config},
                      {"tokens_per_second", row.rate},
                      {"over_plain", row.over_plain},
                      {"cpu_over_plain", row.cpu_over_plain},
                      {"predicted_over_plain", row.predicted_over_plain(plain_predicted)},
                      {"paper_over_plain", row.paper_over_plain()},
                      {"acceptance", row.acceptance()},
                      {"right_behind_right", row.right_behind_right()},
                      {"accepted_length", row.accepted_length()},
                      {"published_length", published_length(row.config)},
                      {"draft_tokens", row.mean_draft()},
                      {"draft_ms_per_token", 1e3 * row.total.mean_draft_seconds()},
                      {"plain_step_ms", 1e3 * row.plain_step},
                      {"rows_per_step", row.total.rows_per_step()},
                      {"operations_per_byte", row.operations_per_byte},
                      {"drafter_mib", static_cast<double>(row.drafter_bytes) / (1 << 20)},
                      {"adaptive_estimate", row.adaptive_estimate},
                      {"changed_answers", row.total.changed}};
}

std::string heading() {
  return fmt::format(
      "{:10} {:>5} {:>9} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7} {:>6} {:>5} {:>8} {:>6} {:>6} "
      "{:>6}  {}\n",
      "task", "batch", "tok/s", "x plain", "x cpu", "by parts", "formula", "accept.", "a", "length",
      "paper", "draft us", "rows", "op/B", "MiB", "method");
}

std::string line_of(const SpeculateRow& row, double plain_predicted) {
  std::string line =
      fmt::format("{:10} {:5} {:9.1f} {:7.2f} {:7.2f} {:8.2f} ", row.task, row.batch, row.rate,
                  row.over_plain, row.cpu_over_plain, row.predicted_over_plain(plain_predicted));
  const bool drafts = row.total.drafts > 0;
  line +=
      drafts ? fmt::format("{:7.2f} {:5.1f} % {:7.3f} {:6.2f} {:>5} {:8.1f} ",
                           row.paper_over_plain(), 100 * row.acceptance(), row.right_behind_right(),
                           row.accepted_length(), shown(published_length(row.config), "{:.2f}"),
                           1e6 * row.total.mean_draft_seconds())
             : fmt::format("{:46}", "");
  line +=
      fmt::format("{:6.1f} {:6.1f} {:>6}  {}", row.total.rows_per_step(), row.operations_per_byte,
                  shown(static_cast<double>(row.drafter_bytes) / (1 << 20), "{:.0f}"),
                  name_of_config(row.config));
  if (row.total.changed > 0) line += fmt::format("  ({} answers changed)", row.total.changed);
  if (row.adaptive_estimate > 0)
    line += fmt::format("  (it expected {:.0f} % of the time)", 100 * row.adaptive_estimate);
  return line + "\n";
}

// Vicuna-7B or, of EAGLE-3, 13B on Spec-Bench (hemingkx/Spec-Bench, 2025-04); MTP: DeepSeek-V3,
// one token, 85 to 90 % accepted.
double published_length(std::string_view config) {
  constexpr std::pair<std::string_view, double> kPublished[] = {
      {"\"ngram\"", 1.75},  {"\"lookahead\"", 1.64}, {"\"draft_model\"", 2.28},
      {"\"medusa\"", 2.31}, {"\"eagle3\"", 5.71},    {"\"eagle\"", 3.58},
      {"\"mtp\"", 1.88}};
  for (const auto& [method, length] : kPublished)
    if (config.find(method) != config.npos) return length;
  return 0;
}

std::string speculate_page(const std::vector<SpeculateRow>& rows, const std::string& about,
                           const Limits& limits) {
  std::string page = kReportHead + fmt::format("<p>{}</p>", escape_xml(about));
  std::vector<std::string> tasks;
  for (const SpeculateRow& row : rows)
    if (std::ranges::find(tasks, row.task) == tasks.end()) tasks.push_back(row.task);
  for (const std::string& task : tasks) page += curves(rows, task);
  page +=
      "<table><tr><th>task<th>batch<th>tok/s<th>over plain<th>of CPU time<th>by "
      "parts<th>formula<th>accepted"
      "<th>a<th>length<th>published<th>draft, us<th>rows a step<th>operations per byte<th>MiB"
      "<th>method</tr>";
  double plain_predicted = 0;
  for (const SpeculateRow& row : rows) {
    if (row.config.empty()) plain_predicted = row.total.predicted_rate();
    page += fmt::format(
        "<tr><td>{}<td>{}<td>{:.1f}<td>{:.2f}<td>{:.2f}<td>{:.2f}<td>{}<td>{}<td>{}<td>{:.2f}<td>{}"
        "<td>{}"
        "<td>{:.1f}<td>{:.1f}<td>{}<td>{}</tr>",
        escape_xml(row.task), row.batch, row.rate, row.over_plain, row.cpu_over_plain,
        row.predicted_over_plain(plain_predicted), shown(row.paper_over_plain(), "{:.2f}"),
        shown(100 * row.acceptance(), "{:.1f} %"), shown(row.right_behind_right(), "{:.3f}"),
        row.accepted_length(), shown(published_length(row.config), "{:.2f}"),
        shown(1e6 * row.total.mean_draft_seconds(), "{:.1f}"), row.total.rows_per_step(),
        row.operations_per_byte,
        shown(static_cast<double>(row.drafter_bytes) / (1 << 20), "{:.0f}"),
        escape_xml(name_of_config(row.config)));
  }
  page += fmt::format(
      "</table><p>By parts: the accepted length over the medians of drafting and of verifying so "
      "many rows. Formula: (1 - a^(K+1)) / ((1 - a)(cK + 1)), with a, c and K as measured. "
      "Published: the accepted length that others report for the method on other models. "
      "Operations per byte: those of a step's products for each byte of weights; this machine "
      "multiplies {:.0f} GFLOP/s and reads {:.1f} GB/s, so that steps above {:.1f} are bound by "
      "products.</p>",
      limits.operations / 1e9, limits.bytes / 1e9, limits.ridge());
  return page + "</html>\n";
}

}  // namespace invar::cli
