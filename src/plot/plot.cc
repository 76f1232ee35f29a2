#include "plot/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace invar {

namespace {

constexpr double kTop = 40, kBottom = 46, kLeft = 70, kRight = 16, kCharacter = 6.8, kLine = 15;
constexpr int kColours = 7;

// Okabe and Ito's colours, lighter ones on a dark ground.
constexpr const char* kStyle =
    "<style>.plot text{font:12px system-ui,sans-serif;fill:#59636e}.plot .title{font-size:14px;"
    "font-weight:600;fill:#1f2328}.plot .ground{fill:#fff}.plot .grid{stroke:#d1d9e0}.plot "
    ".axis{stroke:#818b98}.plot .curve{fill:none;stroke-width:1.75}"
    ".plot .c0{stroke:#0072b2}.plot .c1{stroke:#d55e00}.plot .c2{stroke:#009e73}.plot "
    ".c3{stroke:#a3457f}.plot .c4{stroke:#8a6d00}.plot .c5{stroke:#2f8fc4}.plot .c6{stroke:#555}"
    ".plot .n0{fill:#0072b2}.plot .n1{fill:#d55e00}.plot .n2{fill:#009e73}.plot .n3{fill:#a3457f}"
    ".plot .n4{fill:#8a6d00}.plot .n5{fill:#2f8fc4}.plot .n6{fill:#555}"
    "@media(prefers-color-scheme:dark){.plot text{fill:#9198a1}.plot .title{fill:#f0f6fc}.plot "
    ".ground{fill:#0d1117}.plot .grid{stroke:#3d444d}.plot .axis{stroke:#656c76}"
    ".plot .c0{stroke:#56b4e9}.plot .c1{stroke:#e69f00}.plot .c2{stroke:#2fc79a}.plot "
    ".c3{stroke:#e08fc0}.plot .c4{stroke:#f0e442}.plot .c5{stroke:#9fd3f5}.plot .c6{stroke:#ccc}"
    ".plot .n0{fill:#56b4e9}.plot .n1{fill:#e69f00}.plot .n2{fill:#2fc79a}.plot .n3{fill:#e08fc0}"
    ".plot .n4{fill:#f0e442}.plot .n5{fill:#9fd3f5}.plot .n6{fill:#ccc}}</style>\n";

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double x) { low = std::min(low, x), high = std::max(high, x); }
  bool is_empty() const { return low > high; }
  double part(double x) const { return high > low ? (x - low) / (high - low) : 0.5; }
};

std::string text(double x, double y, const char* anchor, const std::string& what,
                 const std::string& kind = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, kind, escape_xml(what));
}

// 10 to the power of `exponent`: as a number where that is short.
std::string power_label(double exponent) {
  if (exponent < -3 || exponent > 6) return fmt::format("1e{:.0f}", exponent);
  const double value = std::pow(10, exponent);
  return tick_labels({value, 2 * value})[0];
}

// The label at the end of a curve.
struct EndLabel {
  double y;
  size_t curve;
};

class PlotWriter {
 public:
  PlotWriter(const Plot& plot, double top) : plot_(plot), top_(top) {
    size_t longest = 0;
    for (const Curve& curve : plot.curves) {
      longest = std::max(longest, curve.name.size());
      for (const auto& [x, y] : curve.points) add(x, y);
    }
    right_ = plot.width - kRight - kCharacter * static_cast<double>(longest);
    if (xs_.is_empty()) xs_ = {0, 1};
    if (ys_.is_empty()) ys_ = plot.logarithmic ? Range{-8, 0} : Range{0, 1};
    if (xs_.low == xs_.high) xs_.high = xs_.low + 1;
    x_ticks_ = round_ticks(xs_.low, xs_.high, 6);
    if (plot.logarithmic) {
      ys_.low = std::floor(ys_.low) - (has_zeros_ ? 1 : 0);
      ys_.high = std::max(std::ceil(ys_.high), ys_.low + 1);
      for (double y = ys_.low; y <= ys_.high; ++y) y_ticks_.push_back(y);
    } else {
      if (plot.from_zero) ys_.add(0);
      if (ys_.low == ys_.high) ys_.high = ys_.low + (ys_.low == 0 ? 1 : std::fabs(ys_.low));
      y_ticks_ = round_ticks(ys_.low, ys_.high, 5);
      ys_.add(y_ticks_.front()), ys_.add(y_ticks_.back());
    }
  }

  std::string svg() const {
    std::string svg = text(16, top_ + 22, "start", plot_.title, "title") + grid() + titles();
    std::vector<EndLabel> labels;
    for (size_t i = 0; i < plot_.curves.size(); ++i) {
      const Curve& curve = plot_.curves[i];
      svg += path(curve, i);
      for (auto point = curve.points.rbegin(); point != curve.points.rend(); ++point)
        if (std::isfinite(point->second)) {
          if (!curve.name.empty()) labels.push_back({py(place(point->second)), i});
          break;
        }
    }
    return svg + names(std::move(labels));
  }

 private:
  void add(double x, double y) {
    if (!std::isfinite(x) || !std::isfinite(y)) return;
    xs_.add(x);
    if (!plot_.logarithmic)
      ys_.add(y);
    else if (y > 0)
      ys_.add(std::log10(y));
    else
      has_zeros_ = true;
  }

  double bottom() const { return top_ + plot_.height - kBottom; }
  double px(double x) const { return kLeft + xs_.part(x) * (right_ - kLeft); }
  double py(double y) const { return bottom() - ys_.part(y) * (plot_.height - kTop - kBottom); }
  double place(double y) const {
    if (!plot_.logarithmic) return y;
    return y > 0 ? std::log10(y) : ys_.low;
  }

  std::string grid() const {
    std::string svg;
    const std::vector<std::string> labels = tick_labels(y_ticks_);
    for (size_t i = 0; i < y_ticks_.size(); ++i) {
      const double y = py(y_ticks_[i]);
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" class=\"{}\"/>\n", kLeft, y, right_,
                         i == 0 ? "axis" : "grid");
      svg += text(kLeft - 6, y + 4, "end",
                  !plot_.logarithmic     ? labels[i]
                  : i == 0 && has_zeros_ ? "0"
                                         : power_label(y_ticks_[i]));
    }
    const std::vector<std::string> below = tick_labels(x_ticks_);
    for (size_t i = 0; i < x_ticks_.size(); ++i) {
      if (x_ticks_[i] < xs_.low - 1e-9 * std::fabs(xs_.low) || x_ticks_[i] > xs_.high) continue;
      const double x = px(x_ticks_[i]);
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}v4\" class=\"axis\"/>\n", x, bottom());
      svg += text(x, bottom() + 17, "middle", below[i]);
    }
    return svg;
  }

  std::string titles() const {
    const double middle = (top_ + kTop + bottom()) / 2;
    return text((kLeft + right_) / 2, bottom() + 36, "middle", plot_.x_title) +
           fmt::format(
               "<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">"
               "{}</text>\n",
               middle, escape_xml(plot_.y_title));
  }

  std::string path(const Curve& curve, size_t number) const {
    std::string path;
    for (const auto& [x, y] : curve.points)
      if (std::isfinite(x) && std::isfinite(y))
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x), py(place(y)));
    if (path.empty()) return path;
    return fmt::format("<path d=\"{}\" class=\"curve c{}\"/>\n", path, number % kColours);
  }

  // Beside the curves' ends, moved apart where they would cover each other.
  std::string names(std::vector<EndLabel> labels) const {
    std::sort(labels.begin(), labels.end(),
              [](const EndLabel& a, const EndLabel& b) { return a.y < b.y; });
    for (size_t i = 1; i < labels.size(); ++i)
      labels[i].y = std::max(labels[i].y, labels[i - 1].y + kLine);
    double lowest = bottom();
    for (size_t i = labels.size(); i-- > 0; lowest = labels[i].y - kLine)
      labels[i].y = std::min(labels[i].y, lowest);
    std::string svg;
    for (const EndLabel& label : labels)
      svg += text(right_ + 6, label.y + 4, "start", plot_.curves[label.curve].name,
                  fmt::format("n{}", label.curve % kColours));
    return svg;
  }

  const Plot& plot_;
  double top_, right_ = 0;
  Range xs_, ys_;
  bool has_zeros_ = false;
  std::vector<double> x_ticks_, y_ticks_;
};

}  // namespace

std::string escape_xml(std::string_view text) {
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

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 12);
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    std::string label = fmt::format("{:.{}f}", tick == 0 ? 0.0 : tick, decimals);
    const size_t digits = label.find('.') == std::string::npos ? label.size() : label.find('.');
    const size_t sign = label[0] == '-' ? 1 : 0;
    for (size_t at = digits; at > sign + 3; at -= 3) label.insert(at - 3, ",");
    labels.push_back(std::move(label));
  }
  return labels;
}

std::string plots_svg(const std::vector<Plot>& plots) {
  double width = 0, height = 0;
  for (const Plot& plot : plots) width = std::max(width, plot.width), height += plot.height;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\">\n{3}"
      "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
      width, height, plots.empty() ? "" : escape_xml(plots.front().title), kStyle);
  double top = 0;
  for (const Plot& plot : plots) {
    svg += PlotWriter(plot, top).svg();
    top += plot.height;
  }
  return svg + "</svg>\n";
}

std::string plot_svg(const Plot& plot) {
  return plots_svg({plot});
}

}  // namespace invar
