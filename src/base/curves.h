// Curves over steps as an SVG picture.
#pragma once

#include <string>
#include <vector>

namespace invar {

struct Curve {
  std::string name, color;
  std::vector<std::pair<double, double>> points;
};

// The curves over a common x axis, y from the smallest to the largest value; NaN and infinities are
// left out.
std::string curves_svg(const std::string& title, const std::vector<Curve>& curves);

}  // namespace invar
