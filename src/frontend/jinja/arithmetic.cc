// The operators that compute: + - * / // % ** on numbers, texts and lists, as Python has them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "frontend/jinja/operations.h"
#include "frontend/jinja/python_text.h"

namespace invar::jinja {

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
    const size_t bytes = s->size() * static_cast<size_t>(times);
    std::string out = bytes > 0 ? *s : "";
    out.reserve(bytes);
    while (out.size() < bytes) out.append(out, 0, bytes - out.size());  // twice as much each time
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
    return budget.text(percent_formatted(budget, *a.as_string(), b));
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

}  // namespace invar::jinja
