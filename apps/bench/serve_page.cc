// The HTML report of invar bench serve: no script, nothing from elsewhere.
#include <fmt/format.h>

#include <algorithm>

#include "plot/plot.h"
#include "serve_metrics.h"

namespace invar::cli {

namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr size_t kMostPoints = 800;  // of a curve: more than there are pixels

// Points of ascending x, from 0 on both axes.
std::string chart(const std::string& title, const std::string& x_title, const std::string& y_title,
                  const Points& points) {
  Curve curve{"", {{0, 0}}};
  const size_t stride = points.size() / kMostPoints + 1;
  for (size_t i = 0; i < points.size(); i += stride) curve.points.push_back(points[i]);
  if (!points.empty()) curve.points.push_back(points.back());
  return "<figure>" +
         plot_svg({.title = title,
                   .x_title = x_title,
                   .y_title = y_title,
                   .curves = {std::move(curve)},
                   .from_zero = true,
                   .width = 440,
                   .height = 260}) +
         "</figure>";
}

// Share of the values that are at most x, in percent.
Points cumulative(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Points points{{0, 0}};
  for (size_t i = 0; i < values.size(); ++i)
    points.emplace_back(values[i],
                        100 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
  return points;
}

// The number of requests under way as stairs.
Points stairs(const Points& changes) {
  Points points;
  for (const auto& [time, number] : changes) {
    if (!points.empty()) points.emplace_back(time, points.back().second);
    points.emplace_back(time, number);
  }
  return points;
}

std::string table(const json::Value& values) {
  std::string rows = "<table>";
  for (const auto& [key, value] : values.as_object()) {
    if (value.is_array() || value.is_null()) continue;
    const std::string shown = value.is_number() && !value.is_integer()
                                  ? fmt::format("{:.3f}", value.as_number())
                              : value.is_string() ? value.as_string()
                                                  : json::dump(value);
    rows += fmt::format("<tr><td>{}</td><td class=\"value\">{}</td></tr>", escape_xml(key),
                        escape_xml(shown));
  }
  return rows + "</table>";
}

constexpr const char* kHead =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
    "<meta name=\"color-scheme\" content=\"light dark\"><title>invar bench serve</title>"
    "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:60em}"
    "table{border-collapse:collapse;margin:1em 0}td{padding:.1em 1em .1em 0;"
    "border-bottom:1px solid #8885}.value{text-align:right;font-variant-numeric:tabular-nums}"
    "figure{display:inline-block;width:440px;margin:1em 1em 0 0}svg{width:100%}</style>"
    "<h1>invar bench serve</h1>";

}  // namespace

std::string serve_page(const ServeLoad& load, const json::Value& about,
                       const json::Value& metrics) {
  std::string page = kHead + table(about);
  for (const Series& series : series_of(load))
    page += chart(series.title, "time (ms)", "share of all at most (%)", cumulative(series.values));
  page += chart("Requests under way", "time (s)", "requests", stairs(under_way(load)));
  return page + table(metrics) + "</html>\n";
}

}  // namespace invar::cli
