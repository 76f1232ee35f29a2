// Operations of expressions on values: operators, members, filters, tests, under a budget.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "frontend/jinja/ast.h"
#include "frontend/jinja/template.h"
#include "frontend/jinja/value.h"

namespace invar::jinja {

// Counts what a rendering does; a Fault when it is more than allowed.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  void step(int64_t count = 1);
  // Bytes that are looked at without being kept.
  void touch(size_t bytes) { step(static_cast<int64_t>(bytes / kBytesOfStep)); }
  // A search for `what`: in the worst case each byte is compared with all of it.
  void touch_search(const std::string& in, const std::string& what) {
    touch(in.size() * std::max<size_t>(1, what.size()));
  }
  void make_text(size_t bytes);
  // A text that was made.
  Value text(std::string made);
  // The value's text, a step for each value in it; its bytes count as looked at, not as kept.
  std::string printed(const Value& value);
  const Limits& limits() const { return limits_; }

 private:
  static constexpr size_t kBytesOfStep = 256;
  const Limits limits_;
  int64_t steps_ = 0;
  size_t text_bytes_ = 0;
};

// The arguments of a call by the names of its parameters, in their order.
class Parameters {
 public:
  // A Fault when there are too many, one is named twice, or a name is unknown.
  Parameters(const std::string& function, const Arguments& arguments,
             std::initializer_list<const char*> names);

  bool has(size_t i) const { return values_[i] && !values_[i]->is_undefined(); }
  const Value* find(size_t i) const { return values_[i]; }
  // Each a Fault when the argument is absent or of another type.
  const Value& value(size_t i) const;
  const std::string& string(size_t i) const;
  int64_t integer(size_t i) const;
  // With what holds when it is absent.
  Value value_or(size_t i, Value other) const { return values_[i] ? *values_[i] : other; }
  bool truth_or(size_t i, bool other) const { return values_[i] ? values_[i]->truth() : other; }
  int64_t integer_or(size_t i, int64_t other) const { return values_[i] ? integer(i) : other; }
  // nullptr when absent or none.
  const std::string* string_or_none(size_t i) const;

 private:
  std::string function_;
  std::vector<const char*> names_;
  std::vector<const Value*> values_;
};

// How often a part stands in a text, a step each.
int64_t count_of(Budget& budget, const std::string& s, const std::string& part);

// The elements of anything that can be iterated over; none of undefined.
Items items_of(Budget& budget, const Value& value);
int64_t length_of(const Value& value);
// Charges the work of one comparison with the value and returns it.
int64_t charge_comparison(Budget& budget, const Value& value);

// A dict of pairs of which later ones replace earlier ones: each is compared with those before.
Value dict_of(Budget& budget, std::vector<Pair> pairs);

Value unary(Operator op, const Value& a);
Value binary(Budget& budget, Operator op, const Value& a, const Value& b);
bool compare(Budget& budget, Operator op, const Value& a, const Value& b);
// object.name, object[key], object[first:last:step]
Value attribute(Budget& budget, const Value& object, const std::string& name);
Value item(Budget& budget, const Value& object, const Value& key);
Value slice(Budget& budget, const Value& object, const Value& first, const Value& last,
            const Value& step);

Value call(const Value& callee, const Arguments& arguments);
Value make_callable(std::string name, std::function<Value(const Arguments&)> call);
// A method of a text, list or dict; undefined when it has none of that name.
Value method(Budget& budget, const Value& object, const std::string& name);
Value filter(Budget& budget, const std::string& name, const Value& input,
             const Arguments& arguments);
bool is_filter(const std::string& name);
bool test(Budget& budget, const std::string& name, const Value& value, const Arguments& arguments);

}  // namespace invar::jinja
