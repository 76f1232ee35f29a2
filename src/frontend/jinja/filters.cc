#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/jinja/operations.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

namespace {

using Filter = Value (*)(Budget&, const Value&, const Arguments&);

Value iterator_of(Items items) {
  return Value::sequence(SequenceKind::iterator, std::move(items));
}

// value.a.0.b for the path "a.0.b"; the value itself without a path.
Value at_path(Budget& budget, const Value& value, const Value* path, const Value* otherwise = {}) {
  if (!path || path->is_none()) return value;
  if (!path->is_string()) return item(budget, value, *path);
  Value found = value;
  const std::string dot = ".";
  for (const std::string_view part : text::split(*path->as_string(), &dot, -1)) {
    int64_t index = 0;
    const auto end = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = text::is_digits(part) && end.ec == std::errc();
    found = item(budget, found, is_index ? Value(index) : Value(part));
    if (otherwise && !otherwise->is_none() && found.is_undefined()) found = *otherwise;
  }
  return found;
}

Value sort_key(Budget& budget, const Value& value, bool case_sensitive) {
  const std::string* s = value.as_string();
  return s && !case_sensitive ? budget.text(text::lower(*s)) : value;
}

// The items with their keys in ascending (or descending) order; equal ones stay in theirs.
struct Keyed {
  Value key, value;
};
Items sorted(Budget& budget, std::vector<Keyed> keyed, bool descending) {
  const auto precedes = [&](const Keyed& a, const Keyed& b) {
    charge_comparison(budget, a.key);
    return descending ? a.key.compare(b.key) > 0 : a.key.compare(b.key) < 0;
  };
  std::stable_sort(keyed.begin(), keyed.end(), precedes);
  Items items;
  for (Keyed& one : keyed) items.push_back(std::move(one.value));
  return items;
}

Value sort(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("sort", a, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = p.truth_or(1, false);
  std::vector<Value> paths;
  if (const Value* path = p.find(2); path && path->is_string()) {
    const std::string comma = ",";
    for (const std::string_view one : text::split(*path->as_string(), &comma, -1))
      paths.push_back(one);
  } else if (path && !path->is_none()) {
    paths.push_back(*path);
  }
  std::vector<Keyed> keyed;
  for (const Value& value : items_of(budget, input)) {
    Items keys;
    for (const Value& path : paths)
      keys.push_back(sort_key(budget, at_path(budget, value, &path), case_sensitive));
    keyed.push_back(
        {paths.empty() ? sort_key(budget, value, case_sensitive) : Value::list(std::move(keys)),
         value});
  }
  return Value::list(sorted(budget, std::move(keyed), p.truth_or(0, false)));
}

Value dictsort(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("dictsort", a, {"case_sensitive", "by", "reverse"});
  const Dict* dict = input.as_dict();
  if (!dict) fault(fmt::format("dictsort needs a dict, found a {}", input.type_name()));
  const std::string by = to_text(p.value_or(1, "key"));
  if (by != "key" && by != "value") fault("dictsort sorts by key or by value");
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : dict->pairs)
    keyed.push_back({sort_key(budget, by == "key" ? key : value, p.truth_or(0, false)),
                     Value::tuple({key, value})});
  return Value::list(sorted(budget, std::move(keyed), p.truth_or(2, false)));
}

Value unique(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("unique", a, {"case_sensitive", "attribute"});
  Items kept, keys;
  for (const Value& value : items_of(budget, input)) {
    Value key = sort_key(budget, at_path(budget, value, p.find(1)), p.truth_or(0, false));
    budget.step(std::ssize(keys) * charge_comparison(budget, key));
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(std::move(key));
    kept.push_back(value);
  }
  return iterator_of(std::move(kept));
}

Value extreme(Budget& budget, const Value& input, const Arguments& a, const char* name, int sign) {
  const Parameters p(name, a, {"case_sensitive", "attribute"});
  const Items items = items_of(budget, input);
  if (items.empty()) return Undefined{fmt::format("the {} of nothing", name)};
  const auto key_of = [&](const Value& value) {
    return sort_key(budget, at_path(budget, value, p.find(1)), p.truth_or(0, false));
  };
  size_t best = 0;
  Value best_key = key_of(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    charge_comparison(budget, key);
    if (key.compare(best_key) * sign <= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

// map: a filter's name with its arguments, or an attribute.
Value map(Budget& budget, const Value& input, const Arguments& a) {
  Items out;
  if (a.positional.empty()) {
    const Parameters p("map", a, {"attribute", "default"});
    for (const Value& value : items_of(budget, input))
      out.push_back(at_path(budget, value, &p.value(0), p.find(1)));
    return iterator_of(std::move(out));
  }
  const std::string* name = a.positional[0].as_string();
  if (!name) fault("map needs the name of a filter");
  const Arguments rest{{a.positional.begin() + 1, a.positional.end()}, a.named};
  for (const Value& value : items_of(budget, input))
    out.push_back(filter(budget, *name, value, rest));
  return iterator_of(std::move(out));
}

// select, reject and the same by an attribute.
Value choose(Budget& budget, const Value& input, const Arguments& a, bool wanted, bool by_path) {
  if (!input.truth()) return iterator_of({});
  const size_t used = by_path ? 1 : 0;
  if (a.positional.size() < used) fault("selectattr and rejectattr need an attribute");
  const Value* path = by_path ? &a.positional[0] : nullptr;
  const bool has_test = a.positional.size() > used;
  const std::string* name = has_test ? a.positional[used].as_string() : nullptr;
  if (has_test && !name) fault("a filter that selects needs the name of a test");
  Arguments rest;
  if (has_test) rest = {{a.positional.begin() + used + 1, a.positional.end()}, a.named};
  Items out;
  for (const Value& value : items_of(budget, input)) {
    const Value tested = at_path(budget, value, path);
    if ((has_test ? test(budget, *name, tested, rest) : tested.truth()) == wanted)
      out.push_back(value);
  }
  return iterator_of(std::move(out));
}

Value join(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("join", a, {"d", "attribute"});
  const std::string by = to_text(p.value_or(0, ""));
  std::string out;
  bool first = true;
  for (const Value& value : items_of(budget, input)) {
    const std::string part = to_text(at_path(budget, value, p.find(1)));
    budget.make_text(part.size() + by.size());
    if (!first) out += by;
    first = false;
    out += part;
  }
  return out;
}

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
  return budget.text(to_json(input, style));
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

Value round(Budget&, const Value& input, const Arguments& a) {
  const Parameters p("round", a, {"precision", "method"});
  const int64_t precision = p.integer_or(0, 0);
  const std::string how = to_text(p.value_or(1, "common"));
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

Value sum(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("sum", a, {"attribute", "start"});
  Value total = p.value_or(1, 0);
  for (const Value& value : items_of(budget, input))
    total = binary(budget, Operator::add, total, at_path(budget, value, p.find(0)));
  return total;
}

Value reverse(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("reverse", a, {});
  if (input.is_string()) return slice(budget, input, nullptr, nullptr, -1);
  Items items = items_of(budget, input);
  std::reverse(items.begin(), items.end());
  return iterator_of(std::move(items));
}

Value first_or_last(Budget& budget, const Value& input, const Arguments& a, bool first) {
  const Parameters p(first ? "first" : "last", a, {});
  if (!first) length_of(input);  // a generator has no last
  const Items items = items_of(budget, input);
  if (items.empty()) return Undefined{"an element of nothing"};
  return first ? first_of(items) : last_of(items);
}

Value items(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("items", a, {});
  if (input.is_undefined()) return iterator_of({});
  const Dict* dict = input.as_dict();
  if (!dict) fault(fmt::format("items needs a dict, found a {}", input.type_name()));
  Items pairs;
  budget.step(std::ssize(dict->pairs));
  for (const auto& [key, value] : dict->pairs) pairs.push_back(Value::tuple({key, value}));
  return iterator_of(std::move(pairs));
}

Value format(Budget& budget, const Value& input, const Arguments& a) {
  if (!a.positional.empty() && !a.named.empty()) fault("format takes values by place or by name");
  std::vector<Pair> pairs;
  for (const auto& [name, value] : a.named) pairs.emplace_back(name, value);
  const Value values =
      pairs.empty() ? Value::tuple(a.positional) : dict_of(budget, std::move(pairs));
  return budget.text(percent_formatted(to_text(input), values));
}

Value replace(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("replace", a, {"old", "new", "count"});
  const std::string s = to_text(input), old = to_text(p.value(0)), with = to_text(p.value(1));
  const Value limit = p.value_or(2, nullptr);
  budget.touch_search(s, old);
  budget.make_text(s.size() + static_cast<size_t>(text::count(s, old)) * with.size());
  return text::replaced(s, old, with, limit.is_none() ? -1 : p.integer(2));
}

Value trim(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("trim", a, {"chars"});
  const std::string s = to_text(input);
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
  return budget.text(kChange(to_text(input)));
}

Value as_text(Budget& budget, const Value& input, const Arguments& a) {
  const Parameters p("string", a, {});
  return input.is_string() ? input : budget.text(to_text(input));
}

Value as_safe_text(Budget& budget, const Value& input, const Arguments& a) {
  return Value::safe(*as_text(budget, input, a).as_string());
}

const std::unordered_map<std::string, Filter>& filters() {
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
      {"dictsort", dictsort},
      {"first",
       [](Budget& b, const Value& v, const Arguments& a) { return first_or_last(b, v, a, true); }},
      {"float", to_float},
      {"format", format},
      {"from_json", from_json},
      {"indent", indent},
      {"int", to_integer},
      {"items", items},
      {"join", join},
      {"last",
       [](Budget& b, const Value& v, const Arguments& a) { return first_or_last(b, v, a, false); }},
      {"length", [](Budget&, const Value& v, const Arguments&) -> Value { return length_of(v); }},
      {"list",
       [](Budget& b, const Value& v, const Arguments&) { return Value::list(items_of(b, v)); }},
      {"lower", changed<text::lower>},
      {"map", map},
      {"max",
       [](Budget& b, const Value& v, const Arguments& a) { return extreme(b, v, a, "max", 1); }},
      {"min",
       [](Budget& b, const Value& v, const Arguments& a) { return extreme(b, v, a, "min", -1); }},
      {"reject",
       [](Budget& b, const Value& v, const Arguments& a) { return choose(b, v, a, false, false); }},
      {"rejectattr",
       [](Budget& b, const Value& v, const Arguments& a) { return choose(b, v, a, false, true); }},
      {"replace", replace},
      {"reverse", reverse},
      {"round", round},
      {"safe", as_safe_text},
      {"select",
       [](Budget& b, const Value& v, const Arguments& a) { return choose(b, v, a, true, false); }},
      {"selectattr",
       [](Budget& b, const Value& v, const Arguments& a) { return choose(b, v, a, true, true); }},
      {"sort", sort},
      {"string", as_text},
      {"sum", sum},
      {"title", changed<text::titled_words>},
      {"tojson", tojson},
      {"trim", trim},
      {"unique", unique},
      {"upper", changed<text::upper>},
  };
  return kFilters;
}

}  // namespace

Value filter(Budget& budget, const std::string& name, const Value& input,
             const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end())
    fault(fmt::format("the filter {} is not supported", json::quoted(name)));
  budget.step();
  if (const std::string* s = input.as_string()) budget.touch(s->size());
  return found->second(budget, input, arguments);
}

namespace {

using Test = bool (*)(Budget&, const Value&, const Arguments&);

template <Operator kOperator>
bool compared(Budget& budget, const Value& value, const Arguments& a) {
  return compare(budget, kOperator, value, Parameters("a test", a, {"other"}).value(0));
}

int64_t remainder(Budget& budget, const Value& value, const Value& by) {
  return binary(budget, Operator::modulo, value, by).as_integer().value_or(-1);
}

bool is_sequence(Budget&, const Value& v, const Arguments&) {
  return v.is_undefined() || v.is_string() || v.as_dict() ||
         (v.as_sequence() && v.as_sequence()->kind <= SequenceKind::range);
}

const std::unordered_map<std::string, Test>& tests() {
  using B = Budget&;
  using V = const Value&;
  using A = const Arguments&;
  static const std::unordered_map<std::string, Test> kTests = {
      {"defined", [](B, V v, A) { return !v.is_undefined(); }},
      {"undefined", [](B, V v, A) { return v.is_undefined(); }},
      {"none", [](B, V v, A) { return v.is_none(); }},
      {"boolean", [](B, V v, A) { return v.is_bool(); }},
      {"true", [](B, V v, A) { return v.is_bool() && v.truth(); }},
      {"false", [](B, V v, A) { return v.is_bool() && !v.truth(); }},
      {"integer", [](B, V v, A) { return v.as_integer().has_value() && !v.is_bool(); }},
      {"float", [](B, V v, A) { return v.as_float().has_value(); }},
      {"number", [](B, V v, A) { return v.as_number().has_value(); }},
      {"string", [](B, V v, A) { return v.is_string(); }},
      {"mapping", [](B, V v, A) { return v.as_dict() != nullptr; }},
      {"sequence", is_sequence},
      {"iterable",
       [](B, V v, A) {
         return v.is_undefined() || v.is_string() || v.as_dict() || v.as_sequence() || v.as_loop();
       }},
      {"callable", [](B, V v, A) { return v.as_callable() != nullptr; }},
      {"sameas",
       [](B, V v, A a) { return v.same_as(Parameters("sameas", a, {"other"}).value(0)); }},
      {"odd", [](B b, V v, A) { return remainder(b, v, 2) == 1; }},
      {"even", [](B b, V v, A) { return remainder(b, v, 2) == 0; }},
      {"divisibleby",
       [](B b, V v, A a) {
         return remainder(b, v, Parameters("divisibleby", a, {"num"}).value(0)) == 0;
       }},
      {"upper", [](B, V v, A) { return text::is_upper(to_text(v)); }},
      {"lower", [](B, V v, A) { return text::is_lower(to_text(v)); }},
      {"filter", [](B, V v, A) { return v.is_string() && filters().contains(*v.as_string()); }},
      {"in", compared<Operator::in>},
      {"eq", compared<Operator::equal>},
      {"equalto", compared<Operator::equal>},
      {"==", compared<Operator::equal>},
      {"ne", compared<Operator::not_equal>},
      {"!=", compared<Operator::not_equal>},
      {"lt", compared<Operator::less>},
      {"lessthan", compared<Operator::less>},
      {"<", compared<Operator::less>},
      {"le", compared<Operator::less_equal>},
      {"<=", compared<Operator::less_equal>},
      {"gt", compared<Operator::greater>},
      {"greaterthan", compared<Operator::greater>},
      {">", compared<Operator::greater>},
      {"ge", compared<Operator::greater_equal>},
      {">=", compared<Operator::greater_equal>},
  };
  return kTests;
}

}  // namespace

bool test(Budget& budget, const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end())
    fault(fmt::format("the test {} is not supported", json::quoted(name)));
  budget.step();
  if (const std::string* s = value.as_string()) budget.touch(s->size());
  return found->second(budget, value, arguments);
}

}  // namespace invar::jinja
