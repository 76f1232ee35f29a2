// Numbers within bounds: which digits may follow depends on the digits so far.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "sampling/grammar/json_text.h"

namespace invar::grammar {

namespace {

constexpr int kMaxWhole = 18, kMaxFraction = 17;

struct Decimal {
  bool is_negative = false;
  std::string whole = "0", fraction = {};  // no zeros in front or behind that say nothing
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

Decimal decimal_of(const json::Value& value, const char* word) {
  if (!value.is_number())
    fail_usage("expected a number at {} of the JSON schema, found {}", word, json::excerpt(value));
  std::string text = json::dump(value);
  Decimal d{.is_negative = text.starts_with('-')};
  if (d.is_negative) text.erase(0, 1);
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    exponent = std::atoi(text.c_str() + e + 1);
    text.resize(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point);
  if (point < text.size()) digits += text.substr(point + 1);
  int whole = static_cast<int>(point) + exponent;  // digits before the point
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0');
  whole = std::max(whole, 0);
  if (std::ssize(digits) < whole) digits.resize(whole, '0');
  d.whole = digits.substr(0, whole);
  d.fraction = digits.substr(whole);
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  if (d.whole.empty()) d.whole = "0";
  d.fraction.resize(d.fraction.find_last_not_of('0') + 1);
  if (d.is_zero()) d.is_negative = false;
  return d;
}

// Numbers without a sign from `low` to `high`.
struct Magnitudes {
  Decimal low = {}, high = {};
  bool low_excluded = false, high_excluded = false;
  bool is_endless = false;  // `high` says nothing
  int fraction = kMaxFraction;
  // Numbers are multiples of this, behind whose `places` last digits the point stands.
  int64_t multiple = 1;
  int places = 0;
};

// How the digits so far stand to the same number of digits of a bound, then to the bound.
enum Order : int32_t { kBelow, kSame, kAbove };
Order order(char a, char b) {
  return a < b ? kBelow : a == b ? kSame : kAbove;
}

class NumberSearch {
 public:
  explicit NumberSearch(const Magnitudes& range) : range_(range) {}

  Table search(Budget& budget) {
    const auto like = [](uint8_t byte) -> uint8_t {
      return byte == '.' || (byte >= '0' && byte <= '9') ? byte : 0;
    };
    const auto step = [&](const Search::Key& key, uint8_t byte) { return next(key, byte); };
    const auto accepts = [&](const Search::Key& key) { return ends(key); };
    const auto begins = [](const Search::Key&) { return false; };
    return search_table({kStart, 0, kSame, kSame, 0}, {step, accepts, begins, like}, budget);
  }

 private:
  enum Phase : int32_t { kStart, kWhole, kPoint, kFraction };
  enum Field { kPhase, kDigits, kToLow, kToHigh, kRest };

  static Order refine(int32_t so_far, char c, const std::string& bound, int32_t at) {
    if (so_far != kSame) return static_cast<Order>(so_far);
    return order(c, at < std::ssize(bound) ? bound[at] : '0');
  }
  // A number of so many digits against a bound's whole part.
  static Order to_whole(int32_t digits, int32_t so_far, const std::string& bound) {
    if (digits != std::ssize(bound)) return digits < std::ssize(bound) ? kBelow : kAbove;
    return static_cast<Order>(so_far);
  }
  Order to_high(int32_t digits, int32_t so_far) const {
    return range_.is_endless ? kBelow : to_whole(digits, so_far, range_.high.whole);
  }

  std::optional<Search::Key> next(const Search::Key& key, uint8_t byte) const {
    const char c = static_cast<char>(byte);
    const int32_t digits = key[kDigits];
    if (c == '.') {
      if (key[kPhase] != kWhole || range_.fraction == 0) return std::nullopt;
      const Order low = to_whole(digits, key[kToLow], range_.low.whole);
      const Order high = to_high(digits, key[kToHigh]);
      if (low == kBelow || high == kAbove) return std::nullopt;
      return Search::Key{kPoint, 0, low, high, key[kRest]};
    }
    if (c < '0' || c > '9') return std::nullopt;
    const bool is_whole = key[kPhase] <= kWhole;
    if (digits == (is_whole ? kMaxWhole : range_.fraction)) return std::nullopt;
    if (key[kPhase] == kWhole && key[kRest] < 0) return std::nullopt;  // behind a 0
    const std::string& low = is_whole ? range_.low.whole : range_.low.fraction;
    const std::string& high = is_whole ? range_.high.whole : range_.high.fraction;
    Search::Key to{is_whole ? kWhole : kFraction, digits + 1, refine(key[kToLow], c, low, digits),
                   range_.is_endless ? kBelow : refine(key[kToHigh], c, high, digits), 0};
    if (!is_whole && (to[kToLow] == kBelow || to[kToHigh] == kAbove)) return std::nullopt;
    const int64_t rest = std::max(key[kRest], 0);  // -1: a 0
    to[kRest] = static_cast<int32_t>((rest * 10 + (c - '0')) % range_.multiple);
    if (key[kPhase] == kStart && c == '0') to[kRest] = -1;
    return to;
  }

  // With zeros for the places that have not come.
  bool is_multiple(const Search::Key& key) const {
    int64_t rest = std::max(key[kRest], 0);
    for (int32_t place = key[kPhase] == kFraction ? key[kDigits] : 0; place < range_.places;
         ++place)
      rest = rest * 10 % range_.multiple;
    return rest == 0;
  }

  bool ends(const Search::Key& key) const {
    if (key[kPhase] != kWhole && key[kPhase] != kFraction) return false;
    if (!is_multiple(key)) return false;
    int32_t low = key[kToLow], high = key[kToHigh], behind = key[kDigits];
    if (key[kPhase] == kWhole) {
      low = to_whole(behind, low, range_.low.whole);
      high = to_high(behind, high);
      behind = 0;
    }
    if (low == kSame && behind < std::ssize(range_.low.fraction)) low = kBelow;
    if (high == kSame && behind < std::ssize(range_.high.fraction)) high = kBelow;
    return (low == kAbove || (low == kSame && !range_.low_excluded)) &&
           (high == kBelow || (high == kSame && !range_.high_excluded));
  }

  const Magnitudes& range_;
};

// Digits behind the point, and what all digits are a multiple of.
void read_multiple(const NumberRules& rules, Magnitudes& range) {
  if (rules.is_integer) range.fraction = 0;
  if (rules.multiple.is_null()) return;
  constexpr size_t kMostDigits = 9;
  const Decimal step = decimal_of(rules.multiple, "multipleOf");
  std::string digits = step.whole + step.fraction;
  digits.erase(0, digits.find_first_not_of('0'));
  if (step.is_negative || digits.empty() || digits.size() > kMostDigits ||
      std::ssize(step.fraction) > kMaxFraction)
    fail_usage(
        "expected multipleOf of the JSON schema as a number above 0 of up to {} digits, found {}",
        kMostDigits, json::excerpt(rules.multiple));
  range.multiple = std::stoll(digits);
  range.places = static_cast<int>(step.fraction.size());
  range.fraction = std::min(range.fraction, range.places);
}

}  // namespace

Language::Expr bounded_number(Language& language, const NumberRules& rules) {
  Magnitudes range;
  read_multiple(rules, range);
  std::optional<Decimal> low, high;
  if (!rules.low.is_null()) low = decimal_of(rules.low, "minimum");
  if (!rules.high.is_null()) high = decimal_of(rules.high, "maximum");
  const auto numbers = [&](const std::optional<Decimal>& from, bool from_excluded,
                           const std::optional<Decimal>& to, bool to_excluded) {
    Magnitudes part = range;
    part.low_excluded = part.high_excluded = false;
    if (from) part.low = *from, part.low_excluded = from_excluded;
    part.is_endless = !to || to->whole.size() > kMaxWhole;
    if (!part.is_endless) part.high = *to, part.high_excluded = to_excluded;
    return language.table(NumberSearch(part).search(language.budget()));
  };
  if (!low && !high)  // the same digits with and without a sign
    return language.sequence(
        {language.optional(language.text("-")), numbers({}, false, {}, false)});
  std::vector<Language::Expr> options;
  if (!high || !high->is_negative)
    options.push_back(numbers(low && !low->is_negative ? low : std::nullopt, rules.low_excluded,
                              high, rules.high_excluded));
  if (!low || low->is_negative) {
    const bool is_below = high && (high->is_negative || high->is_zero());
    options.push_back(language.sequence(
        {language.text("-"),
         numbers(is_below ? high : std::nullopt, rules.high_excluded, low, rules.low_excluded)}));
  }
  return language.choice(options);
}

}  // namespace invar::grammar
