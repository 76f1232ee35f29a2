#include "base/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace invar {

namespace {

constexpr double kWidth = 760, kHeight = 360, kLeft = 64, kRight = 16, kTop = 52, kBottom = 40;

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

class PanelWriter {
 public:
  PanelWriter(const Panel& panel, double top) : panel_(panel), top_(top) {
    for (const Curve& curve : panel.curves)
      for (const auto& [x, y] : curve.points) {
        if (!std::isfinite(y)) continue;
        xs_.add(x);
        if (!panel.logarithmic)
          ys_.add(y);
        else if (y > 0)
          ys_.add(std::floor(std::log10(y))), ys_.add(std::ceil(std::log10(y)));
      }
    if (xs_.low > xs_.high) xs_ = {0, 1};
    if (ys_.low > ys_.high) ys_ = {0, 1};
    if (panel.logarithmic) ys_.low -= 1;  // the line of 0
  }

  std::string svg() const {
    std::string svg = text(kLeft, top_ + 18, "start", panel_.title) + grid();
    double legend = kLeft;
    for (const Curve& curve : panel_.curves) {
      svg += path(curve);
      svg += fmt::format(R"(<g fill="{}">)", curve.color) +
             text(legend, top_ + 38, "start", curve.name) + "</g>\n";
      legend += 6.6 * static_cast<double>(curve.name.size()) + 18;
    }
    return svg;
  }

 private:
  double px(double x) const { return kLeft + xs_.part(x) * (kWidth - kLeft - kRight); }
  double py(double y) const {
    return top_ + kHeight - kBottom - ys_.part(y) * (kHeight - kTop - kBottom);
  }
  double place(double y) const {
    if (!panel_.logarithmic) return y;
    return y > 0 ? std::log10(y) : ys_.low;
  }

  std::string grid() const {
    std::string svg;
    const int lines = panel_.logarithmic ? static_cast<int>(ys_.high - ys_.low) : 4;
    for (int i = 0; i <= lines; ++i) {
      const double y = ys_.low + (ys_.high - ys_.low) * i / lines;
      svg += fmt::format(R"(<path d="M{:.1f} {:.1f}H{:.1f}" stroke="#ddd"/>)"
                         "\n",
                         kLeft, py(y), kWidth - kRight);
      const std::string label = !panel_.logarithmic ? fmt::format("{:.3g}", y)
                                : i == 0            ? "0"
                                                    : fmt::format("1e{:.0f}", y);
      svg += text(kLeft - 6, py(y) + 4, "end", label);
    }
    for (int i = 0; i <= 4; ++i) {
      const double x = xs_.low + (xs_.high - xs_.low) * i / 4;
      svg += text(px(x), top_ + kHeight - kBottom + 18, "middle", fmt::format("{:.0f}", x));
    }
    return svg;
  }

  std::string path(const Curve& curve) const {
    std::string path;
    for (const auto& [x, y] : curve.points)
      if (std::isfinite(y))
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x), py(place(y)));
    return fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="1.5"/>)"
                       "\n",
                       path, curve.color);
  }

  const Panel& panel_;
  double top_;
  Range xs_, ys_;
};

}  // namespace

std::string panels_svg(const std::vector<Panel>& panels) {
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="12">)"
      "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight * static_cast<double>(panels.size()));
  double top = 0;
  for (const Panel& panel : panels) {
    svg += PanelWriter(panel, top).svg();
    top += kHeight;
  }
  return svg + "</svg>\n";
}

std::string curves_svg(const std::string& title, const std::vector<Curve>& curves) {
  return panels_svg({{title, curves}});
}

}  // namespace invar
