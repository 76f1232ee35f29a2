// JSON values as a user wrote them: keys in order, integers apart from floating-point numbers.
// Reading goes through simdjson (strict UTF-8, exact doubles); a value is limited in depth and
// duplicates are refused. An integer of 64 bits, signed or not, keeps every digit; a larger one is
// the nearest double.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace invar::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
using Object = std::vector<Member>;

class Value {
 public:
  Value() = default;  // null
  Value(std::nullptr_t) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(static_cast<int64_t>(value)) {}
  Value(int64_t value) : data_(value) {}
  Value(uint64_t value);
  Value(double value) : data_(value) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(std::string_view value) : data_(std::string(value)) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(Array value) : data_(std::move(value)) {}
  Value(Object value) : data_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  // Written without a point and an exponent, and within 64 bits. to_integer says which other
  // numbers may stand for an integer.
  bool is_integer() const {
    return std::holds_alternative<int64_t>(data_) || std::holds_alternative<uint64_t>(data_);
  }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<Array>(data_); }
  bool is_object() const { return std::holds_alternative<Object>(data_); }

  // The integer that a number is, however it is written (1000, 1e3, 1000.0); nothing for what is no
  // number, has a fraction or does not fit. With a point or an exponent it fits up to 2^53, beyond
  // which a double is not one integer alone.
  std::optional<int64_t> to_integer() const;
  std::optional<uint64_t> to_unsigned() const;

  // Each throws Error naming the expected and the found type. as_number accepts integers,
  // as_integer what to_integer does.
  bool as_bool() const;
  int64_t as_integer() const;
  double as_number() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();

  // Member of an object, or nullptr when absent (or when this is not an object).
  const Value* find(std::string_view key) const;
  // Adds or replaces a member; a null value becomes an empty object first.
  void set(std::string_view key, Value value);

  // "null", "a boolean", "an integer", "a number", "a string", "an array", "an object".
  const char* type_name() const;
  bool operator==(const Value&) const = default;

 private:
  // uint64_t only for what int64_t does not hold.
  using Data =
      std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object>;
  Data data_;
};

struct ParseLimits {
  int max_depth = 64;
  size_t max_bytes = size_t{1} << 30;
  size_t max_values = SIZE_MAX;  // of all lists and objects
};

// Parses one document. `where` names the source in errors ("config.json", "line 3 of x.jsonl").
// Throws Error on anything that is not strict JSON, on duplicate keys and past the limits.
Value parse(std::string_view text, std::string_view where, const ParseLimits& limits = {});
Value parse_file(const std::string& path, const ParseLimits& limits = {});

// Compact JSON, or with `indent` spaces per level when indent > 0. Doubles print as the shortest
// text that parses back to the same double; so a float's is the double that every reader has of it.
std::string dump(const Value& value, int indent = 0);
// The double of the shortest decimal that parses back to the same float: for what people read, such
// as 1e-06 in config.json.
double shortest(float value);
// Appends dump(value).
void append(std::string& out, const Value& value);
// Appends the quoted, escaped form of a UTF-8 string.
void append_quoted(std::string& out, std::string_view text);

// Appends an object as dump() would, member by member, without a Value of it: for texts that are
// written for every token.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_ += '{'; }
  // Begins a member; its value is to be appended to what this returns before the next one.
  std::string& member(std::string_view key) {
    if (!is_empty_) out_ += ", ";
    is_empty_ = false;
    append_quoted(out_, key);
    return out_ += ": ";
  }
  void end() { out_ += '}'; }

 private:
  std::string& out_;
  bool is_empty_ = true;
};

// For error messages: a name quoted and a value as JSON, on one line and cut when long.
std::string quoted(std::string_view text);
std::string excerpt(const Value& value);

}  // namespace invar::json
