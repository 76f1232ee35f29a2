// Line plots as SVG: axes with titles and units, ticks at round numbers, curves named at their
// ends, colours that the colour-blind can tell apart, light and dark after the reader's system.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace invar {

struct Curve {
  std::string name;  // stands at the end of the curve; empty: none
  std::vector<std::pair<double, double>> points;
};

struct Plot {
  std::string title, x_title, y_title;  // a title of an axis has its unit: "time (s)"
  std::vector<Curve> curves;  // the i-th has the i-th colour; NaN and infinities are left out
  bool logarithmic = false;   // y by powers of ten; 0 or less lies on a line of its own
  bool from_zero = false;     // y begins at 0
  double width = 760, height = 320;
};

// One below the other, as a file of its own or inside of a page.
std::string plots_svg(const std::vector<Plot>& plots);
std::string plot_svg(const Plot& plot);

// Round numbers from `low` to `high` or closely around, about `count`, steps of 1, 2 or 5 times a
// power of ten.
std::vector<double> round_ticks(double low, double high, int count);
// All of `ticks` with the same number of decimals, as many as tell them apart.
std::vector<std::string> tick_labels(const std::vector<double>& ticks);

// Text as it stands in XML.
std::string escape_xml(std::string_view text);

}  // namespace invar
