#include "frontend/jinja/operations.h"

#include <fmt/format.h>

#include <algorithm>

#include "frontend/jinja/python_text.h"

namespace invar::jinja {

void Budget::step(int64_t count) {
  steps_ += count;
  if (steps_ > limits_.steps)
    fault(fmt::format("the template takes more than {} steps", limits_.steps));
}

std::string Budget::printed(const Value& value) {
  int64_t values = 0;
  std::string text = to_text(value, &values);
  step(values);
  touch(text.size());
  return text;
}

void Budget::make_text(size_t bytes) {
  text_bytes_ += bytes;
  if (bytes > limits_.text_bytes || text_bytes_ > limits_.text_bytes)
    fault(fmt::format("the template makes more than {} bytes of text", limits_.text_bytes));
}

Value Budget::text(std::string made) {
  make_text(made.size());
  return Value(std::move(made));
}

Parameters::Parameters(const std::string& function, const Arguments& arguments,
                       std::initializer_list<const char*> names)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names_.size())
    fault(fmt::format("{} takes at most {} arguments, found {}", function, names_.size(),
                      arguments.positional.size()));
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) fault(fmt::format("{} has no parameter {}", function, name));
    const Value*& place = values_[found - names_.begin()];
    if (place) fault(fmt::format("{} got its parameter {} twice", function, name));
    place = &value;
  }
}

const Value& Parameters::value(size_t i) const {
  if (!values_[i]) fault(fmt::format("{} needs its parameter {}", function_, names_[i]));
  return *values_[i];
}

const std::string& Parameters::string(size_t i) const {
  const std::string* text = value(i).as_string();
  if (!text)
    fault(fmt::format("{} needs a text as {}, found a value of type {}", function_, names_[i],
                      values_[i]->type_name()));
  return *text;
}

int64_t Parameters::integer(size_t i) const {
  const auto integer = value(i).as_integer();
  if (!integer)
    fault(fmt::format("{} needs an integer as {}, found a value of type {}", function_, names_[i],
                      values_[i]->type_name()));
  return *integer;
}

const std::string* Parameters::string_or_none(size_t i) const {
  return values_[i] && !values_[i]->is_none() ? &string(i) : nullptr;
}

int64_t count_of(Budget& budget, const std::string& s, const std::string& part) {
  const int64_t count = text::count(s, part, budget.limits().steps + 1);
  budget.step(count);
  return count;
}

Items items_of(Budget& budget, const Value& value) {
  Items items;
  if (const Sequence* sequence = value.as_sequence()) {
    items = sequence->items;
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, member] : dict->pairs) items.push_back(key);
  } else if (const std::string* s = value.as_string()) {
    budget.step(text::length(*s) + 1);
    const std::vector<size_t> starts = text::starts(*s);
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      items.push_back(s->substr(starts[i], starts[i + 1] - starts[i]));
    return items;
  } else if (!value.is_undefined()) {
    fault(fmt::format("a value of type {} cannot be iterated over", value.type_name()));
  }
  budget.step(std::ssize(items));
  return items;
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* s = value.as_string()) return text::length(*s);
  if (const Dict* dict = value.as_dict()) return std::ssize(dict->pairs);
  if (const Loop* loop = value.as_loop()) return std::ssize(*loop->items);
  const Sequence* sequence = value.as_sequence();
  if (!sequence || sequence->kind == SequenceKind::iterator)
    fault(fmt::format("a value of type {} has no length", value.type_name()));
  return std::ssize(sequence->items);
}

namespace {

bool contains(Budget& budget, const Value& container, const Value& value) {
  if (const std::string* s = container.as_string()) {
    if (value.is_undefined()) fault_undefined(*value.as_undefined());
    if (!value.is_string())
      fault(fmt::format("a text contains texts, not a value of type {}", value.type_name()));
    budget.touch_search(*s, *value.as_string());
    return text::find(*s, *value.as_string()) != std::string::npos;
  }
  const int64_t each = charge_comparison(budget, value);
  if (const Dict* dict = container.as_dict()) {
    budget.step(std::ssize(dict->pairs) * each);
    return container.find(value) != nullptr;
  }
  const Items items = items_of(budget, container);
  budget.step(std::ssize(items) * each);
  return std::find(items.begin(), items.end(), value) != items.end();
}

}  // namespace

Value dict_of(Budget& budget, std::vector<Pair> pairs) {
  int64_t each = 1;
  for (const auto& [key, value] : pairs) each = std::max(each, charge_comparison(budget, key));
  budget.step(std::ssize(pairs) * std::ssize(pairs) / 8 * each);
  return Value::dict(std::move(pairs));
}

int64_t charge_comparison(Budget& budget, const Value& value) {
  int64_t own = 1;
  if (const std::string* s = value.as_string()) own += std::ssize(*s) / 256;
  const Dict* dict = value.as_dict();
  if (dict) own += std::ssize(dict->pairs) * std::ssize(dict->pairs);
  budget.step(own);
  if (const Sequence* sequence = value.as_sequence())
    for (const Value& item : sequence->items) own += charge_comparison(budget, item);
  if (dict)
    for (const auto& [key, member] : dict->pairs) own += charge_comparison(budget, member);
  return own;
}

bool compare(Budget& budget, Operator op, const Value& a, const Value& b) {
  charge_comparison(budget, a);
  switch (op) {
    case Operator::in:
      return contains(budget, b, a);
    case Operator::not_in:
      return !contains(budget, b, a);
    case Operator::equal:
      return a == b;
    case Operator::not_equal:
      return !(a == b);
    case Operator::less:
      return a.compare(b) < 0;
    case Operator::less_equal:
      return a.compare(b) <= 0;
    case Operator::greater:
      return a.compare(b) > 0;
    default:
      return a.compare(b) >= 0;
  }
}

Value call(const Value& callee, const Arguments& arguments) {
  if (const Undefined* undefined = callee.as_undefined()) fault_undefined(*undefined);
  const Callable* callable = callee.as_callable();
  if (!callable) fault(fmt::format("a value of type {} cannot be called", callee.type_name()));
  return callable->call(arguments);
}

Value make_callable(std::string name, std::function<Value(const Arguments&)> call) {
  return std::make_shared<const Callable>(Callable{std::move(name), std::move(call)});
}

}  // namespace invar::jinja
