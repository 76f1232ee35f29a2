#include "base/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace invar {

namespace {

constexpr double kWidth = 720, kHeight = 360, kLeft = 56, kRight = 16, kTop = 32, kBottom = 40;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double x) { low = std::min(low, x), high = std::max(high, x); }
  double part(double x) const { return high > low ? (x - low) / (high - low) : 0.5; }
};

std::string text(double x, double y, const char* anchor, const std::string& what) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     x, y, anchor, what);
}

}  // namespace

std::string curves_svg(const std::string& title, const std::vector<Curve>& curves) {
  Range xs, ys;
  const auto visit = [&](auto&& point) {
    for (const Curve& curve : curves)
      for (const auto& [x, y] : curve.points)
        if (std::isfinite(y)) point(x, y);
  };
  visit([&](double x, double y) { xs.add(x), ys.add(y); });
  if (xs.low > xs.high) xs = {0, 1}, ys = {0, 1};
  const auto px = [&](double x) { return kLeft + xs.part(x) * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) {
    return kHeight - kBottom - ys.part(y) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="12">)"
      "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += text(kLeft, 20, "start", title);
  for (int i = 0; i <= 4; ++i) {
    const double x = xs.low + (xs.high - xs.low) * i / 4, y = ys.low + (ys.high - ys.low) * i / 4;
    svg += fmt::format(R"(<path d="M{:.1f} {:.1f}H{:.1f}" stroke="#ddd"/>)"
                       "\n",
                       kLeft, py(y), kWidth - kRight);
    svg += text(kLeft - 6, py(y) + 4, "end", fmt::format("{:.3g}", y));
    svg += text(px(x), kHeight - kBottom + 18, "middle", fmt::format("{:.0f}", x));
  }
  double legend = kWidth - kRight;
  for (const Curve& curve : curves) {
    std::string path;
    for (const auto& [x, y] : curve.points)
      if (std::isfinite(y))
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x), py(y));
    svg += fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="1.5"/>)"
                       "\n",
                       path, curve.color);
    svg += fmt::format(R"(<g fill="{}">)", curve.color) + text(legend, 20, "end", curve.name) +
           "</g>\n";
    legend -= 9.0 * static_cast<double>(curve.name.size()) + 12;
  }
  return svg + "</svg>\n";
}

}  // namespace invar
