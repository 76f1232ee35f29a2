// The HTML report of invar bench serve: no script, nothing from elsewhere.
#include <fmt/format.h>

#include <algorithm>

#include "serve_metrics.h"

namespace invar::cli {

namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr double kWidth = 420, kHeight = 220, kLeft = 48, kBottom = 28, kTop = 8, kRight = 8;
constexpr size_t kMostPoints = 800;  // of a curve: more than there are pixels

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// A line through points of ascending x, from 0 on both axes, with five ticks each.
std::string chart(const std::string& title, const Points& points, const char* unit) {
  double right = 1e-9, top = 1e-9;
  for (const auto& [x, y] : points) right = std::max(right, x), top = std::max(top, y);
  const auto to_x = [&](double x) { return kLeft + (kWidth - kLeft - kRight) * x / right; };
  const auto to_y = [&](double y) {
    return kHeight - kBottom - (kHeight - kBottom - kTop) * y / top;
  };
  std::string svg = fmt::format("<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\">",
                                escaped(title), kWidth, kHeight);
  for (int i = 0; i <= 4; ++i) {
    const double x = right * i / 4, y = top * i / 4;
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.3g}</text>",
        to_x(x), kTop, kHeight - kBottom, kHeight - 12, x);
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.3g}</text>",
        kLeft, to_y(y), kWidth - kRight, kLeft - 4, to_y(y) + 4, y);
  }
  svg += "<polyline points=\"";
  const size_t stride = points.size() / kMostPoints + 1;
  for (size_t i = 0; i < points.size(); i += stride)
    svg += fmt::format("{:.1f},{:.1f} ", to_x(points[i].first), to_y(points[i].second));
  if (!points.empty())
    svg += fmt::format("{:.1f},{:.1f}", to_x(points.back().first), to_y(points.back().second));
  return svg +
         fmt::format("\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></svg></figure>",
                     kWidth - kRight, kHeight - 1, unit);
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
    rows += fmt::format("<tr><td>{}</td><td class=\"value\">{}</td></tr>", escaped(key),
                        escaped(shown));
  }
  return rows + "</table>";
}

constexpr const char* kHead =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>invar bench serve</title>"
    "<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:60em}"
    "table{border-collapse:collapse;margin:1em 0}td{padding:.1em 1em .1em 0;border-bottom:1px "
    "solid "
    "#ddd}.value{text-align:right;font-variant-numeric:tabular-nums}figure{display:inline-block;"
    "width:420px;margin:1em 1em 0 0}svg{width:100%}text{font-size:10px;fill:#555}.grid{stroke:#eee}"
    "polyline{fill:none;stroke:#1565c0;stroke-width:1.5}</style><h1>invar bench serve</h1>";

}  // namespace

std::string serve_page(const ServeLoad& load, const json::Value& about,
                       const json::Value& metrics) {
  std::string page = kHead + table(about);
  for (const Series& series : series_of(load))
    page += chart(series.title + ", % of all at most", cumulative(series.values), "ms");
  page += chart("Requests under way", stairs(under_way(load)), "s");
  return page + table(metrics) + "</html>\n";
}

}  // namespace invar::cli
