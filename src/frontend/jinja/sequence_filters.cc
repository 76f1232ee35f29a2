#include "frontend/jinja/sequence_filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/ends.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja::filters {

namespace {

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

}  // namespace

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
  const std::string by = budget.printed(p.value_or(1, "key"));
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
  const std::string by = budget.printed(p.value_or(0, ""));
  std::string out;
  bool first = true;
  for (const Value& value : items_of(budget, input)) {
    const std::string part = budget.printed(at_path(budget, value, p.find(1)));
    budget.make_text(part.size() + by.size());
    if (!first) out += by;
    first = false;
    out += part;
  }
  return out;
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

}  // namespace invar::jinja::filters
