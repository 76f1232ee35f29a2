// The values of a template, with Python's meaning: what is true, what is equal, what comes first.
//
// A value is small and shares what it holds; everything but a namespace is immutable, as in the
// sandbox that other servers render in. Text is UTF-8 and counted in code points.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace invar::jinja {

// A fault while a template runs. The evaluator adds the line of the innermost expression.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
  int line = 0;
  bool raised = false;  // by the template's own raise_exception
};

class Value;
using Items = std::vector<Value>;
using Pair = std::pair<Value, Value>;

// Everything that Python counts by place. The kinds differ in how they print and compare; an
// iterator has no length and is always true.
enum class SequenceKind { list, tuple, range, keys, values, items, iterator };
struct Sequence {
  SequenceKind kind;
  Items items;
  int depth;  // of containers within one another
};
struct Dict {
  std::vector<Pair> pairs;  // in the order of insertion
  int depth;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};
struct Undefined {
  std::string name;  // what is not there, for the message
};

struct Arguments {
  Items positional;
  std::vector<std::pair<std::string, Value>> named;
};
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};
// The variable `loop` in the body of a for.
struct Loop {
  std::shared_ptr<const Items> items;
  size_t index0 = 0;
  int depth0 = 0;
  std::optional<Items> changed;  // the last arguments of loop.changed
};

class Value {
 public:
  // Containers within one another; deeper ones are a Fault.
  static constexpr int kMaxDepth = 96;

  Value() : data_(Undefined{}) {}
  Value(Undefined value) : data_(std::move(value)) {}
  Value(std::nullptr_t) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(int64_t value) : data_(value) {}
  Value(size_t value) : data_(static_cast<int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Loop> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Callable> value) : data_(std::move(value)) {}
  static Value sequence(SequenceKind kind, Items items);
  static Value list(Items items) { return sequence(SequenceKind::list, std::move(items)); }
  static Value tuple(Items items) { return sequence(SequenceKind::tuple, std::move(items)); }
  // Later pairs replace earlier ones of an equal key. `distinct`: there are none.
  static Value dict(std::vector<Pair> pairs, bool distinct = false);
  static Value from_json(const json::Value& value);
  // A text that passed the filter `safe`: what is added to it is escaped for HTML, as markupsafe
  // does. Every other operation makes a plain text of it.
  static Value safe(const std::string& text);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_string() const { return as_string() != nullptr; }
  bool is_safe() const { return safe_; }
  // The content, or nullptr when the value is of another type.
  const std::string* as_string() const;
  const Sequence* as_sequence() const;
  const Dict* as_dict() const;
  Namespace* as_namespace() const;
  Loop* as_loop() const;
  const Callable* as_callable() const;
  const Undefined* as_undefined() const { return std::get_if<Undefined>(&data_); }
  // Integers, with False and True as 0 and 1.
  std::optional<int64_t> as_integer() const;
  std::optional<double> as_float() const;   // floats only
  std::optional<double> as_number() const;  // both

  bool truth() const;
  // Python's name of the type.
  const char* type_name() const;
  bool operator==(const Value& other) const;
  // -1, 0 or 1; a Fault for types that have no order.
  int compare(const Value& other) const;
  // Whether both are one object: what `is sameas` asks.
  bool same_as(const Value& other) const;
  const Value* find(const Value& key) const;  // in a dict; nullptr elsewhere and when absent

 private:
  struct None {};
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
               std::shared_ptr<Namespace>, std::shared_ptr<Loop>, std::shared_ptr<const Callable>>
      data_;
  bool safe_ = false;
};

[[noreturn]] void fault(const std::string& message);
// The Fault of using something that is not there.
[[noreturn]] void fault_undefined(const Undefined& undefined);

}  // namespace invar::jinja
