// The methods of texts, lists and dicts.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "frontend/jinja/operations.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

namespace {

Value list_of(Budget& budget, const text::Lines& lines) {
  budget.step(std::ssize(lines));
  Items items;
  for (const std::string_view line : lines) {
    budget.make_text(line.size());
    items.push_back(line);
  }
  return Value::list(std::move(items));
}

using TextMethod = Value (*)(Budget&, const std::string&, const Arguments&);

bool any_affix(const Value& affix, bool (*matches)(std::string_view, std::string_view),
               const std::string& s) {
  if (const std::string* one = affix.as_string()) return matches(s, *one);
  const Sequence* several = affix.as_sequence();
  if (!several || several->kind != SequenceKind::tuple)
    fault("startswith and endswith take a text or a tuple of texts");
  return std::any_of(several->items.begin(), several->items.end(), [&](const Value& one) {
    return one.as_string() && matches(s, *one.as_string());
  });
}

bool starts(std::string_view s, std::string_view affix) {
  return s.starts_with(affix);
}
bool ends(std::string_view s, std::string_view affix) {
  return s.ends_with(affix);
}

// The two ends of a text around the place `at` of its part `by`, and the part.
Value parts(Budget& budget, const std::string& s, const std::string& by, size_t at, bool left) {
  if (by.empty()) fault("a text cannot be divided at an empty separator");
  budget.make_text(s.size());
  if (at == std::string::npos) return left ? Value::tuple({s, "", ""}) : Value::tuple({"", "", s});
  return Value::tuple({s.substr(0, at), by, s.substr(at + by.size())});
}

int64_t code_points_before(const std::string& s, size_t at) {
  return at == std::string::npos ? -1 : text::length(std::string_view(s).substr(0, at));
}

Value joined(Budget& budget, const std::string& by, const Arguments& a) {
  std::string out;
  const Items items = items_of(budget, Parameters("join", a, {"iterable"}).value(0));
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string())
      fault(fmt::format("join needs texts, found a value of type {}", items[i].type_name()));
    budget.make_text(items[i].as_string()->size() + by.size());
    if (i) out += by;
    out += *items[i].as_string();
  }
  return out;
}

// Before a text falls into more pieces than there are steps. Without a separator it does so at what
// may begin a space or the end of a line.
void expect_few(Budget& budget, const std::string& s, const std::string* separator) {
  const int64_t most = budget.limits().steps;
  if (std::ssize(s) <= most) return;
  const auto is_gap = [](unsigned char c) {
    return c <= 0x20 || c == 0xc2 || (c >= 0xe1 && c <= 0xe3);
  };
  const int64_t pieces =
      separator ? text::count(s, *separator, most + 1) : std::ranges::count_if(s, is_gap);
  if (pieces > most) budget.step(pieces);
}

#define TEXT_METHOD(name, body)                                                          \
  {                                                                                      \
    name, [](Budget& budget, const std::string& s, const Arguments& a) -> Value { body } \
  }
#define TEXT_PREDICATE(name, function)                                     \
  {                                                                        \
    name, [](Budget&, const std::string& s, const Arguments& a) -> Value { \
      return (Parameters(name, a, {}), text::function(s));                 \
    }                                                                      \
  }
#define TEXT_STRIP(name, function)                                                           \
  {                                                                                          \
    name, [](Budget& budget, const std::string& s, const Arguments& a) -> Value {            \
      return budget.text(                                                                    \
          std::string(text::function(s, Parameters(name, a, {"chars"}).string_or_none(0)))); \
    }                                                                                        \
  }

const std::unordered_map<std::string, TextMethod>& text_methods() {
  static const std::unordered_map<std::string, TextMethod> kMethods = {
    TEXT_STRIP("strip", stripped),
    TEXT_STRIP("lstrip", left_stripped),
    TEXT_STRIP("rstrip", right_stripped),
    TEXT_PREDICATE("isdigit", is_digits),
    TEXT_PREDICATE("isalpha", is_alphabetic),
    TEXT_PREDICATE("isalnum", is_alphanumeric),
    TEXT_PREDICATE("isspace", is_blank),
    TEXT_PREDICATE("isupper", is_upper),
    TEXT_PREDICATE("islower", is_lower),
    TEXT_METHOD("upper", Parameters("upper", a, {}); return budget.text(text::upper(s));),
    TEXT_METHOD("lower", Parameters("lower", a, {}); return budget.text(text::lower(s));),
    TEXT_METHOD("title", Parameters("title", a, {}); return budget.text(text::titled(s));),
    TEXT_METHOD("capitalize", Parameters("capitalize", a, {});
                return budget.text(text::capitalized(s));),
    TEXT_METHOD("split", const Parameters p("split", a, {"sep", "maxsplit"});
                expect_few(budget, s, p.string_or_none(0));
                return list_of(budget, text::split(s, p.string_or_none(0), p.integer_or(1, -1)));),
    TEXT_METHOD("rsplit", const Parameters p("rsplit", a, {"sep", "maxsplit"});
                expect_few(budget, s, p.string_or_none(0)); return list_of(
                    budget, text::split_from_right(s, p.string_or_none(0), p.integer_or(1, -1)));),
    TEXT_METHOD("splitlines", const Parameters p("splitlines", a, {"keepends"});
                expect_few(budget, s, nullptr);
                return list_of(budget, text::split_lines(s, p.truth_or(0, false)));),
    TEXT_METHOD("startswith", budget.step();
                return any_affix(Parameters("startswith", a, {"prefix"}).value(0), starts, s);),
    TEXT_METHOD("endswith", budget.step();
                return any_affix(Parameters("endswith", a, {"suffix"}).value(0), ends, s);),
    TEXT_METHOD(
        "replace", const Parameters p("replace", a, {"old", "new", "count"});
        const size_t growth = p.string(1).size();
        budget.make_text(static_cast<size_t>(count_of(budget, s, p.string(0))) * growth);
        return budget.text(text::replaced(s, p.string(0), p.string(1), p.integer_or(2, -1)));),
    TEXT_METHOD("find", budget.step(std::ssize(s) / 256); return code_points_before(
                    s, text::find(s, Parameters("find", a, {"sub"}).string(0)));),
    TEXT_METHOD("rfind", budget.step(std::ssize(s) / 256);
                return code_points_before(s, s.rfind(Parameters("rfind", a, {"sub"}).string(0)));),
    TEXT_METHOD("index", budget.step(std::ssize(s) / 256);
                const int64_t at =
                    code_points_before(s, text::find(s, Parameters("index", a, {"sub"}).string(0)));
                if (at < 0) fault("index found nothing"); return at;),
    TEXT_METHOD("count", budget.touch(s.size());
                return count_of(budget, s, Parameters("count", a, {"sub"}).string(0));),
    TEXT_METHOD("partition", const Parameters p("partition", a, {"sep"});
                return parts(budget, s, p.string(0), text::find(s, p.string(0)), true);),
    TEXT_METHOD("rpartition", const Parameters p("rpartition", a, {"sep"});
                return parts(budget, s, p.string(0), s.rfind(p.string(0)), false);),
    TEXT_METHOD("removeprefix", const Parameters p("removeprefix", a, {"prefix"});
                const size_t cut = s.starts_with(p.string(0)) ? p.string(0).size() : 0;
                return budget.text(s.substr(cut));),
    TEXT_METHOD("removesuffix", const Parameters p("removesuffix", a, {"suffix"});
                const size_t cut = s.ends_with(p.string(0)) ? p.string(0).size() : 0;
                return budget.text(s.substr(0, s.size() - cut));),
    TEXT_METHOD("format", return budget.text(brace_formatted(budget, s, a));),
    {"join", joined},
  };
  return kMethods;
}

Value dict_view(Budget& budget, const Dict& dict, SequenceKind kind) {
  budget.step(std::ssize(dict.pairs));
  Items items;
  for (const auto& [key, value] : dict.pairs)
    items.push_back(kind == SequenceKind::keys     ? key
                    : kind == SequenceKind::values ? value
                                                   : Value::tuple({key, value}));
  return Value::sequence(kind, std::move(items));
}

Value dict_method(Budget& budget, const Value& object, const std::string& name) {
  static const std::unordered_map<std::string, SequenceKind> kViews = {
      {"keys", SequenceKind::keys},
      {"values", SequenceKind::values},
      {"items", SequenceKind::items}};
  if (const auto view = kViews.find(name); view != kViews.end())
    return make_callable(name, [&budget, object, kind = view->second, name](const Arguments& a) {
      Parameters(name, a, {});
      return dict_view(budget, *object.as_dict(), kind);
    });
  if (name == "copy")
    return make_callable(name, [object](const Arguments& a) {
      Parameters("copy", a, {});
      return object;
    });
  if (name == "get")
    return make_callable(name, [&budget, object](const Arguments& a) {
      const Parameters p("get", a, {"key", "default"});
      budget.step(length_of(object) / 8);
      const Value* found = object.find(p.value(0));
      return found ? *found : p.value_or(1, nullptr);
    });
  return {};
}

Value sequence_method(Budget& budget, const Value& object, const std::string& name) {
  if (name != "index" && name != "count") return {};
  return make_callable(name, [&budget, object, name](const Arguments& a) -> Value {
    const Value& wanted = Parameters(name, a, {"value"}).value(0);
    const Items& items = object.as_sequence()->items;
    budget.step(std::ssize(items));
    if (name == "count")
      return static_cast<int64_t>(std::count(items.begin(), items.end(), wanted));
    const auto found = std::find(items.begin(), items.end(), wanted);
    if (found == items.end()) fault("index found nothing");
    return found - items.begin();
  });
}

// Refuses methods that would change a value, which the sandbox forbids.
void refuse_change(const Value& object, const std::string& name) {
  static const std::unordered_set<std::string> kOfLists = {"append", "clear",   "extend", "insert",
                                                           "pop",    "reverse", "remove", "sort"};
  static const std::unordered_set<std::string> kOfDicts = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
  const Sequence* sequence = object.as_sequence();
  const bool is_list = sequence && sequence->kind == SequenceKind::list;
  if ((is_list && kOfLists.contains(name)) || (object.as_dict() && kOfDicts.contains(name)))
    fault(fmt::format("the method {} would change a {}, which a template may not", name,
                      object.type_name()));
}

}  // namespace

Value method(Budget& budget, const Value& object, const std::string& name) {
  refuse_change(object, name);
  if (const Sequence* sequence = object.as_sequence();
      sequence && sequence->kind <= SequenceKind::range)
    return sequence_method(budget, object, name);
  if (object.as_dict()) return dict_method(budget, object, name);
  if (!object.is_string()) return {};
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) return {};
  return make_callable(name, [&budget, object, run = found->second](const Arguments& arguments) {
    const std::string* what =
        arguments.positional.empty() ? nullptr : arguments.positional[0].as_string();
    budget.touch_search(*object.as_string(), what ? *what : "");
    return run(budget, *object.as_string(), arguments);
  });
}

}  // namespace invar::jinja
