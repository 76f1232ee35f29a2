#include "plot/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace invar {
namespace {

std::vector<std::string> labels(double low, double high, int count) {
  return tick_labels(round_ticks(low, high, count));
}

TEST(Plot, TicksAreRoundAndCoverTheRange) {
  EXPECT_EQ(labels(0, 1700, 5), (std::vector<std::string>{"0", "500", "1,000", "1,500", "2,000"}));
  EXPECT_EQ(labels(0.503, 0.719, 5),
            (std::vector<std::string>{"0.50", "0.55", "0.60", "0.65", "0.70", "0.75"}));
  EXPECT_EQ(labels(-3, 4, 5), (std::vector<std::string>{"-4", "-2", "0", "2", "4"}));
  EXPECT_EQ(labels(999999, 1000001, 2),
            (std::vector<std::string>{"999,999", "1,000,000", "1,000,001"}));
  for (const double high : {1e-7, 0.3, 7.0, 850.0, 1.7e9}) {
    const std::vector<double> ticks = round_ticks(0, high, 5);
    EXPECT_GE(ticks.back(), high * (1 - 1e-9));
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 8u);
  }
}

TEST(Plot, AxesHaveTitlesAndCurvesTheirNames) {
  const std::string svg =
      plot_svg({.title = "a < b",
                .x_title = "time (s)",
                .y_title = "rows",
                .curves = {{"one & two", {{0, 1}, {10, 3}}}, {"three", {{0, 2}, {10, 3}}}}});
  for (const char* text : {"a &lt; b", ">time (s)<", ">rows<", ">one &amp; two<", ">three<",
                           "prefers-color-scheme:dark"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
}

// Two curves that end at one point: their names must not cover each other.
TEST(Plot, NamesKeepTheirDistance) {
  const std::string svg =
      plot_svg({.curves = {{"first", {{0, 1}, {1, 2}}}, {"second", {{0, 0}, {1, 2}}}}});
  const auto y_of = [&](const std::string& name) {
    const size_t end = svg.find(">" + name + "<"), begin = svg.rfind("y=\"", end) + 3;
    return std::stod(svg.substr(begin));
  };
  EXPECT_GE(std::fabs(y_of("first") - y_of("second")), 14);
}

TEST(Plot, PowersOfTenAreLabelledAsNumbersWhereShort) {
  const std::string svg = plot_svg({.curves = {{"", {{0, 0.2}, {1, 3000}}}}, .logarithmic = true});
  for (const char* label : {">0.1<", ">1<", ">1,000<", ">10,000<"})
    EXPECT_NE(svg.find(label), std::string::npos) << label;
  EXPECT_NE(plot_svg({.curves = {{"", {{0, 1e-9}, {1, 1}}}}, .logarithmic = true}).find(">1e-9<"),
            std::string::npos);
}

// Where all is exactly 0, the axis says below what that is.
TEST(Plot, ZerosAloneStandBelowSmallPowersOfTen) {
  const std::string svg = plot_svg({.curves = {{"", {{0, 0}, {1, 0}}}}, .logarithmic = true});
  for (const char* label : {">0<", ">1e-8<", ">1<"})
    EXPECT_NE(svg.find(label), std::string::npos) << label;
  EXPECT_EQ(svg.find(">10<"), std::string::npos);
}

TEST(Plot, NumbersThatAreNoneAreLeftOut) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const bool logarithmic : {false, true}) {
    const std::string svg =
        plot_svg({.curves = {{"x", {{0, nan}, {1, infinity}, {2, 0}, {3, 1e-5}}}, {"none", {}}},
                  .logarithmic = logarithmic});
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
  EXPECT_NE(plot_svg({}).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace invar
