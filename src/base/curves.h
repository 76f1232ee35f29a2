// Curves over steps as an SVG picture.
#pragma once

#include <string>
#include <vector>

namespace invar {

struct Curve {
  std::string name, color;
  std::vector<std::pair<double, double>> points;
};

// Curves over a common x axis, y from the smallest to the largest value; NaN and infinities are
// left out.
struct Panel {
  std::string title;
  std::vector<Curve> curves;
  bool logarithmic = false;  // y by powers of ten; what is 0 or less lies on a line of its own
};

// One panel below the other.
std::string panels_svg(const std::vector<Panel>& panels);
// One panel.
std::string curves_svg(const std::string& title, const std::vector<Curve>& curves);

}  // namespace invar
