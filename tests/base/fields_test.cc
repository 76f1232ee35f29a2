// Structs through bytes and back without a list of their fields.
#include "base/fields.h"

#include <gtest/gtest.h>

namespace invar {
namespace {

enum class Color : uint8_t { red, green, blue };
constexpr int count_of(Color) {
  return 3;
}

struct Point {
  int32_t x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

struct Ascending {
  int32_t low = 0, high = 0;
  bool operator==(const Ascending&) const = default;
};
void expect_valid(const Ascending& pair) {
  if (pair.low > pair.high) fail("expected an ascending pair, found {} {}", pair.low, pair.high);
}

struct Everything {
  int64_t number = 0;
  bool flag = false;
  Color color = Color::red;
  double real = 0;
  std::string text;
  std::vector<Point> points;
  std::vector<std::string> texts;
  std::optional<int32_t> maybe;
  std::variant<Point, std::string> either;
  std::vector<Ascending> pairs;
  Point nested;
  std::array<uint8_t, 3> digest{};
  std::pair<int32_t, double> both;
  Shared<std::vector<int32_t>> shared;
  bool operator==(const Everything&) const = default;
};

static_assert(fields::is_plain<Point>() && !fields::is_plain<Ascending>());
static_assert(fields::count<Everything>() == 14);

constexpr std::array<std::string_view, 14> kNames = {"number", "flag",   "color", "real",   "text",
                                                     "points", "texts",  "maybe", "either", "pairs",
                                                     "nested", "digest", "both",  "shared"};
static_assert(fields::names<Everything>() == kNames);

Everything some() {
  return {.number = -5,
          .flag = true,
          .color = Color::blue,
          .real = -1.5,
          .text = std::string("a\0b", 3),
          .points = {{1, 2}, {-3, 4}},
          .texts = {"", "x"},
          .maybe = 7,
          .either = std::string("other"),
          .pairs = {{1, 2}, {3, 3}},
          .nested = {8, 9},
          .digest = {1, 2, 3},
          .both = {4, 0.5},
          .shared = {5, 6}};
}

Everything back(std::string_view bytes) {
  return from_bytes<Everything>(bytes, "everything");
}

TEST(Fields, SurviveTheWayThroughBytes) {
  EXPECT_EQ(back(to_bytes(Everything{})), Everything{});
  const Everything all = some();
  EXPECT_EQ(back(to_bytes(all)), all);
}

// Each field alone decides about the bytes, and comes back: none is left out.
TEST(Fields, EachOneCounts) {
  const Everything from = some();
  const auto changed = [&]<size_t... I>(std::index_sequence<I...>) {
    int seen = 0;
    const auto one = [&](auto index) {
      Everything to;
      std::get<index()>(fields_of(to)) = std::get<index()>(fields_of(from));
      EXPECT_NE(to, Everything{});
      EXPECT_NE(to_bytes(to), to_bytes(Everything{}));
      EXPECT_EQ(back(to_bytes(to)), to);
      ++seen;
    };
    (one(std::integral_constant<size_t, I>()), ...);
    return seen;
  };
  EXPECT_EQ(changed(std::make_index_sequence<14>()), 14);
}

TEST(Fields, MalformedBytesAreRefused) {
  const std::string bytes = to_bytes(some());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(back(std::string_view(bytes).substr(0, size)), Error) << size;
  EXPECT_THROW(back(bytes + '\0'), Error);
  const auto refuses = [&](size_t at, char value, const char* why) {
    std::string broken = bytes;
    broken[at] = value;
    try {
      back(broken);
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refuses(8, 2, "neither 0 nor 1");
  refuses(9, 3, "its enumeration does not have");
  refuses(25, 1, "only");                                 // a text of 2^56 bytes
  refuses(bytes.find("other") - 9, 2, "does not exist");  // the variant's kind
  constexpr size_t kBehind = 8 + 3 + 12 + 16;             // nested, digest, both, shared
  refuses(bytes.size() - kBehind - 8, 9, "expected an ascending pair");  // low of the last pair
}

}  // namespace
}  // namespace invar
