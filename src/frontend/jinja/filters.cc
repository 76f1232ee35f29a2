// Filters of texts and numbers, and the table of all filters.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "frontend/jinja/python_text.h"
#include "frontend/jinja/sequence_filters.h"

namespace invar::jinja {

namespace {

using Filter = Value (*)(Budget&, const Value&, const Arguments&);

Value indent(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("indent", a, {"width", "first", "blank"});
  const Value width = p.value_or(0, 4);
  const std::string* s = input.as_string();
  if (!s) fault(fmt::format("indent needs a text, found a {}", input.type_name()));
  std::string by;
  if (const std::string* margin = width.as_string())
    by = *margin;
  else
    by = *binary(budget, Operator::multiply, " ", width).as_string();
  const bool blank = p.truth_or(2, false);
  std::string whole = *s;
  whole += '\n';
  std::string out;
  if (p.truth_or(1, false)) out = by;
  bool first_line = true;
  for (const std::string_view line : text::split_lines(whole, false)) {
    budget.make_text(line.size() + by.size() + 1);
    if (!first_line) {
      out += '\n';
      if (blank || !line.empty()) out += by;
    }
    first_line = false;
    out += line;
  }
  return out;
}

Value tojson(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = p.truth_or(0, false);
  if (const Value* indent = p.find(1); indent && !indent->is_none()) {
    if (const std::string* margin = indent->as_string())
      style.indent = *margin;
    else
      style.indent = *binary(budget, Operator::multiply, " ", *indent).as_string();
    style.item_separator = ",";
  }
  if (const Value* separators = p.find(2); separators && !separators->is_none()) {
    const Items pair = items_of(budget, *separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      fault("tojson takes two texts as separators");
    style.item_separator = *pair[0].as_string();
    style.key_separator = *pair[1].as_string();
  }
  style.sort_keys = p.truth_or(3, false);
  int64_t values = 0;
  std::string made = to_json(input, style, &values);
  budget.step(values);
  return budget.text(std::move(made));
}

Value from_json(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("from_json", a, {});
  const std::string* s = input.as_string();
  if (!s) fault(fmt::format("from_json needs a text, found a {}", input.type_name()));
  budget.make_text(s->size());
  try {
    return Value::from_json(json::parse(*s, "from_json"));
  } catch (const Error& error) {
    fault(error.what());
  }
}

std::optional<double> number_in(const std::string& s) {
  const std::string_view trimmed = text::stripped(s);
  std::string digits;
  for (const char c : trimmed)
    if (c != '_') digits += c;
  const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
  const char* end = digits.data() + digits.size();
  double value = 0;
  const auto result = std::from_chars(begin, end, value);
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return std::nullopt;
  return value;
}

Value to_integer(Budget&, const Value& input, const Arguments& a) {
  const Parameters p("int", a, {"default", "base"});
  const int64_t base = p.integer_or(1, 10);
  if (base < 2 || base > 36) fault("int takes a base from 2 to 36");
  std::optional<double> number = input.as_float();
  if (const auto integer = input.as_integer()) return *integer;
  if (const std::string* s = input.as_string()) {
    std::string_view digits = text::stripped(*s);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value,
                                        static_cast<int>(base));
    if (!digits.empty() && result.ec == std::errc() && result.ptr == digits.data() + digits.size())
      return value;
    number = number_in(*s);
  }
  if (!number || !(std::abs(*number) < 9.2e18)) return p.value_or(0, 0);
  return static_cast<int64_t>(*number);
}

Value to_float(Budget&, const Value& input, const Arguments& a) {
  const Parameters p("float", a, {"default"});
  std::optional<double> number = input.as_number();
  if (const std::string* s = input.as_string()) number = number_in(*s);
  return number ? Value(*number) : p.value_or(0, 0.0);
}

Value round(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("round", a, {"precision", "method"});
  const int64_t precision = p.integer_or(0, 0);
  const std::string how = budget.printed(p.value_or(1, "common"));
  const auto number = input.as_number();
  if (!number) fault(fmt::format("round needs a number, found a {}", input.type_name()));
  if (precision < 0 || precision > 15) fault("round takes a precision from 0 to 15");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return std::ceil(*number * scale) / scale;
  if (how == "floor") return std::floor(*number * scale) / scale;
  if (how != "common") fault("round is common, ceil or floor");
  if (input.as_integer()) return *input.as_integer();
  return std::stod(fmt::format("{:.{}f}", *number, static_cast<int>(precision)));
}

Value format(Budget& budget, const Value& input, const Arguments& a) {
  if (!a.positional.empty() && !a.named.empty()) fault("format takes values by place or by name");
  std::vector<Pair> pairs;
  for (const auto& [name, value] : a.named) pairs.emplace_back(name, value);
  const Value values =
      pairs.empty() ? Value::tuple(a.positional) : dict_of(budget, std::move(pairs));
  return budget.text(percent_formatted(budget, budget.printed(input), values));
}

Value replace(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("replace", a, {"old", "new", "count"});
  const std::string s = budget.printed(input), old = budget.printed(p.value(0)),
                    with = budget.printed(p.value(1));
  const Value limit = p.value_or(2, nullptr);
  budget.touch_search(s, old);
  budget.make_text(s.size() + static_cast<size_t>(count_of(budget, s, old)) * with.size());
  return text::replaced(s, old, with, limit.is_none() ? -1 : p.integer(2));
}

Value trim(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("trim", a, {"chars"});
  const std::string s = budget.printed(input);
  return budget.text(std::string(text::stripped(s, p.string_or_none(0))));
}

Value by_default(Budget&, const Value& input, const Arguments& a) {
  const Parameters p("default", a, {"default_value", "boolean"});
  const bool absent = input.is_undefined() || (p.truth_or(1, false) && !input.truth());
  return absent ? p.value_or(0, "") : input;
}

Value absolute(Budget&, const Value& input, const Arguments& a) {
  const Parameters p("abs", a, {});
  if (const auto integer = input.as_integer())
    return *integer < 0 ? unary(Operator::negate, *integer) : Value(*integer);
  if (const auto number = input.as_float()) return std::abs(*number);
  fault(fmt::format("abs needs a number, found a {}", input.type_name()));
}

template <std::string (*kChange)(std::string_view)>
Value changed(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("a filter of texts", a, {});
  return budget.text(kChange(budget.printed(input)));
}

Value as_text(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("string", a, {});
  return input.is_string() ? input : budget.text(budget.printed(input));
}

Value as_safe_text(Budget& budget, const Value& input, const Arguments& a) {
  return Value::safe(*as_text(budget, input, a).as_string());
}

const std::unordered_map<std::string, Filter>& all_filters() {
  static const std::unordered_map<std::string, Filter> kFilters = {
      {"abs", absolute},
      {"attr",
       [](Budget& b, const Value& v, const Arguments& a) {
         const std::string& name = Parameters("attr", a, {"name"}).string(0);
         return v.as_dict() ? method(b, v, name) : attribute(b, v, name);
       }},
      {"capitalize", changed<text::capitalized>},
      {"count", [](Budget&, const Value& v, const Arguments&) -> Value { return length_of(v); }},
      {"d", by_default},
      {"default", by_default},
      {"dictsort", filters::dictsort},
      {"first", [](Budget& b, const Value& v,
                   const Arguments& a) { return filters::first_or_last(b, v, a, true); }},
      {"float", to_float},
      {"format", format},
      {"from_json", from_json},
      {"indent", indent},
      {"int", to_integer},
      {"items", filters::items},
      {"join", filters::join},
      {"last", [](Budget& b, const Value& v,
                  const Arguments& a) { return filters::first_or_last(b, v, a, false); }},
      {"length", [](Budget&, const Value& v, const Arguments&) -> Value { return length_of(v); }},
      {"list",
       [](Budget& b, const Value& v, const Arguments&) { return Value::list(items_of(b, v)); }},
      {"lower", changed<text::lower>},
      {"map", filters::map},
      {"max", [](Budget& b, const Value& v,
                 const Arguments& a) { return filters::extreme(b, v, a, "max", 1); }},
      {"min", [](Budget& b, const Value& v,
                 const Arguments& a) { return filters::extreme(b, v, a, "min", -1); }},
      {"reject", [](Budget& b, const Value& v,
                    const Arguments& a) { return filters::choose(b, v, a, false, false); }},
      {"rejectattr", [](Budget& b, const Value& v,
                        const Arguments& a) { return filters::choose(b, v, a, false, true); }},
      {"replace", replace},
      {"reverse", filters::reverse},
      {"round", round},
      {"safe", as_safe_text},
      {"select", [](Budget& b, const Value& v,
                    const Arguments& a) { return filters::choose(b, v, a, true, false); }},
      {"selectattr", [](Budget& b, const Value& v,
                        const Arguments& a) { return filters::choose(b, v, a, true, true); }},
      {"sort", filters::sort},
      {"string", as_text},
      {"sum", filters::sum},
      {"title", changed<text::titled_words>},
      {"tojson", tojson},
      {"trim", trim},
      {"unique", filters::unique},
      {"upper", changed<text::upper>},
  };
  return kFilters;
}

}  // namespace

Value filter(Budget& budget, const std::string& name, const Value& input,
             const Arguments& arguments) {
  const auto found = all_filters().find(name);
  if (found == all_filters().end())
    fault(fmt::format("the filter {} is not supported", json::quoted(name)));
  budget.step();
  if (const std::string* s = input.as_string()) budget.touch(s->size());
  return found->second(budget, input, arguments);
}

bool is_filter(const std::string& name) {
  return all_filters().contains(name);
}

}  // namespace invar::jinja
