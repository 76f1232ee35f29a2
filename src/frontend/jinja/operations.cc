#include "frontend/jinja/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "frontend/jinja/python_text.h"

namespace invar::jinja {

void Budget::step(int64_t count) {
  steps_ += count;
  if (steps_ > limits_.steps)
    fault(fmt::format("the template takes more than {} steps", limits_.steps));
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

Items items_of(Budget& budget, const Value& value) {
  Items items;
  if (const Sequence* sequence = value.as_sequence()) {
    items = sequence->items;
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, member] : dict->pairs) items.push_back(key);
  } else if (const std::string* s = value.as_string()) {
    const std::vector<size_t> starts = text::starts(*s);
    budget.step(std::ssize(starts));
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

[[noreturn]] void fault_overflow() {
  fault("an integer is beyond 64 bits");
}

const char* symbol_of(Operator op) {
  static constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**", "-", "+"};
  return kSymbols[static_cast<int>(op)];
}

int64_t floor_divided(int64_t a, int64_t b) {
  if (b == -1) {
    int64_t out;
    if (__builtin_sub_overflow(0, a, &out)) fault_overflow();
    return out;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fault("zero has no negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? int64_t{1} : base;
  if (base == -1) return exponent % 2 ? int64_t{-1} : int64_t{1};
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result)) fault_overflow();
  return result;
}

Value integer_operation(Operator op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case Operator::add:
      if (__builtin_add_overflow(a, b, &out)) fault_overflow();
      return out;
    case Operator::subtract:
      if (__builtin_sub_overflow(a, b, &out)) fault_overflow();
      return out;
    case Operator::multiply:
      if (__builtin_mul_overflow(a, b, &out)) fault_overflow();
      return out;
    case Operator::power:
      return integer_power(a, b);
    default:
      break;
  }
  if (b == 0) fault("a division by zero");
  if (op == Operator::divide) return static_cast<double>(a) / static_cast<double>(b);
  if (op == Operator::floor_divide) return floor_divided(a, b);
  return b == -1 ? int64_t{0} : (a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0));
}

Value float_operation(Operator op, double a, double b) {
  if (op == Operator::add) return a + b;
  if (op == Operator::subtract) return a - b;
  if (op == Operator::multiply) return a * b;
  if (op == Operator::power) return std::pow(a, b);
  if (b == 0) fault("a division by zero");
  if (op == Operator::divide) return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == Operator::modulo) return rest == 0 ? std::copysign(0.0, b) : rest;
  return std::round((a - rest) / b);
}

Value repeated(Budget& budget, const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const std::string* s = what.as_string()) {
    if (!s->empty() && times > static_cast<int64_t>(budget.limits().text_bytes / s->size()))
      budget.make_text(budget.limits().text_bytes + 1);
    budget.make_text(s->size() * times);
    std::string out;
    for (; times > 0; --times) out += *s;
    return out;
  }
  const Sequence& sequence = *what.as_sequence();
  const int64_t size = std::ssize(sequence.items);
  if (size > 0 && times > budget.limits().steps / size) budget.step(budget.limits().steps + 1);
  budget.step(size * times);
  Items items;
  for (; times > 0; --times)
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return Value::sequence(sequence.kind, std::move(items));
}

bool can_be_joined(const Value& a, const Value& b) {
  const Sequence *x = a.as_sequence(), *y = b.as_sequence();
  return x && y && x->kind == y->kind && x->kind <= SequenceKind::tuple;
}

bool can_be_repeated(const Value& a) {
  return a.is_string() || (a.as_sequence() && a.as_sequence()->kind <= SequenceKind::tuple);
}

std::string escaped_for_html(const Value& text) {
  if (text.is_safe()) return *text.as_string();
  std::string escaped;
  for (const char c : *text.as_string()) {
    const std::string_view name = c == '&'    ? "&amp;"
                                  : c == '<'  ? "&lt;"
                                  : c == '>'  ? "&gt;"
                                  : c == '"'  ? "&#34;"
                                  : c == '\'' ? "&#39;"
                                              : std::string_view(&c, 1);
    escaped += name;
  }
  return escaped;
}

Value added_texts(Budget& budget, const Value& a, const Value& b) {
  budget.make_text(a.as_string()->size() + b.as_string()->size());
  if (!a.is_safe() && !b.is_safe()) return *a.as_string() + *b.as_string();
  const Value sum = Value::safe(escaped_for_html(a) + escaped_for_html(b));
  budget.make_text(sum.as_string()->size());
  return sum;
}

}  // namespace

Value unary(Operator op, const Value& a) {
  if (a.is_undefined()) fault_undefined(*a.as_undefined());
  if (const auto integer = a.as_integer())
    return op == Operator::plus ? Value(*integer)
                                : integer_operation(Operator::subtract, 0, *integer);
  if (const auto number = a.as_float()) return op == Operator::plus ? *number : -*number;
  fault(fmt::format("a value of type {} has no sign", a.type_name()));
}

Value binary(Budget& budget, Operator op, const Value& a, const Value& b) {
  if (a.as_integer() && b.as_integer())
    return integer_operation(op, *a.as_integer(), *b.as_integer());
  if (a.as_number() && b.as_number()) return float_operation(op, *a.as_number(), *b.as_number());
  if (op == Operator::modulo && a.is_string())
    return budget.text(percent_formatted(*a.as_string(), b));
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) fault_undefined(*value->as_undefined());
  if (op == Operator::add && a.is_string() && b.is_string()) return added_texts(budget, a, b);
  if (op == Operator::add && can_be_joined(a, b)) {
    Items items = a.as_sequence()->items;
    const Items& more = b.as_sequence()->items;
    budget.step(std::ssize(items) + std::ssize(more));
    items.insert(items.end(), more.begin(), more.end());
    return Value::sequence(a.as_sequence()->kind, std::move(items));
  }
  if (op == Operator::multiply && can_be_repeated(a) && b.as_integer())
    return repeated(budget, a, *b.as_integer());
  if (op == Operator::multiply && can_be_repeated(b) && a.as_integer())
    return repeated(budget, b, *a.as_integer());
  fault(fmt::format("the operator {} does not take values of the types {} and {}", symbol_of(op),
                    a.type_name(), b.type_name()));
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

namespace {

Value loop_member(Budget& budget, const Value& value, const Loop& loop, const std::string& name) {
  const int64_t index0 = static_cast<int64_t>(loop.index0), length = std::ssize(*loop.items);
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "revindex") return length - index0;
  if (name == "revindex0") return length - index0 - 1;
  if (name == "first") return index0 == 0;
  if (name == "last") return index0 == length - 1;
  if (name == "length") return length;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return index0 > 0 ? (*loop.items)[index0 - 1] : Value(Undefined{"loop.previtem of the first"});
  if (name == "nextitem")
    return index0 + 1 < length ? (*loop.items)[index0 + 1]
                               : Value(Undefined{"loop.nextitem of the last"});
  if (name == "cycle")
    return make_callable("loop.cycle", [index0](const Arguments& arguments) {
      if (arguments.positional.empty()) fault("loop.cycle needs something to cycle through");
      return arguments.positional[index0 % arguments.positional.size()];
    });
  if (name == "changed")
    return make_callable("loop.changed", [&budget, value](const Arguments& arguments) {
      budget.step(std::ssize(arguments.positional));
      Loop& state = *value.as_loop();
      const bool changed = !state.changed || !(*state.changed == arguments.positional);
      state.changed = arguments.positional;
      return changed;
    });
  return Undefined{"the member \"" + name + "\" of loop"};
}

}  // namespace

Value attribute(Budget& budget, const Value& object, const std::string& name) {
  if (const Undefined* undefined = object.as_undefined()) fault_undefined(*undefined);
  if (const Loop* loop = object.as_loop()) return loop_member(budget, object, *loop, name);
  if (const Namespace* space = object.as_namespace()) {
    budget.step(std::ssize(space->members) / 8);
    for (const auto& [key, value] : space->members)
      if (key == name) return value;
    return Undefined{"the member \"" + name + "\" of a namespace"};
  }
  Value found = method(budget, object, name);
  if (!found.is_undefined()) return found;
  if (const Dict* dict = object.as_dict()) {
    budget.step(std::ssize(dict->pairs) / 8);
    if (const Value* value = object.find(name)) return *value;
  }
  return Undefined{
      fmt::format("the member \"{}\" of a value of type {}", name, object.type_name())};
}

Value item(Budget& budget, const Value& object, const Value& key) {
  if (const Undefined* undefined = object.as_undefined()) fault_undefined(*undefined);
  if (const Dict* dict = object.as_dict()) {
    budget.step(std::ssize(dict->pairs) / 8);
    if (const Value* value = object.find(key)) return *value;
  }
  if (const std::string* name = key.as_string()) return attribute(budget, object, *name);
  const auto index = key.as_integer();
  if (const std::string* s = object.as_string(); s && index) {
    budget.step(std::ssize(*s) / 256);
    if (const auto character = text::at(*s, *index)) return *character;
  }
  const Sequence* sequence = object.as_sequence();
  if (sequence && sequence->kind <= SequenceKind::range && index) {
    const int64_t place = *index < 0 ? *index + std::ssize(sequence->items) : *index;
    if (place >= 0 && place < std::ssize(sequence->items)) return sequence->items[place];
  }
  return Undefined{fmt::format("an element of a value of type {}", object.type_name())};
}

namespace {

// The places that a slice takes of `size`, as Python counts them.
std::vector<int64_t> places_of(int64_t size, std::optional<int64_t> first,
                               std::optional<int64_t> last, int64_t step) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto bounded = [&](int64_t i) { return std::clamp(i < 0 ? i + size : i, low, high); };
  const int64_t begin = first ? bounded(*first) : step < 0 ? high : low;
  const int64_t end = last ? bounded(*last) : step < 0 ? low : high;
  step = std::clamp<int64_t>(step, -size - 1, size + 1);  // so that nothing overflows
  std::vector<int64_t> places;
  for (int64_t i = begin; step < 0 ? i > end : i < end; i += step) places.push_back(i);
  return places;
}

}  // namespace

Value slice(Budget& budget, const Value& object, const Value& first, const Value& last,
            const Value& step) {
  if (const Undefined* undefined = object.as_undefined()) fault_undefined(*undefined);
  for (const Value* bound : {&first, &last, &step})
    if (!bound->is_none() && !bound->as_integer())
      fault(fmt::format("a slice takes integers, found a {}", bound->type_name()));
  const int64_t by = step.as_integer().value_or(1);
  if (by == 0) fault("a slice has the step zero");
  const std::string* s = object.as_string();
  const Sequence* sequence = object.as_sequence();
  if (!s && !(sequence && sequence->kind <= SequenceKind::range))
    fault(fmt::format("a value of type {} has no slices", object.type_name()));
  if (s) budget.step(std::ssize(*s) / 16);  // its places are listed
  const std::vector<size_t> starts = s ? text::starts(*s) : std::vector<size_t>();
  const int64_t size = s ? std::ssize(starts) - 1 : std::ssize(sequence->items);
  const std::vector<int64_t> places = places_of(size, first.as_integer(), last.as_integer(), by);
  budget.step(std::ssize(places) + std::ssize(starts) / 64);
  if (s) {
    std::string out;
    for (const int64_t i : places) out.append(*s, starts[i], starts[i + 1] - starts[i]);
    return budget.text(std::move(out));
  }
  Items items;
  for (const int64_t i : places) items.push_back(sequence->items[i]);
  return Value::sequence(sequence->kind, std::move(items));
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
