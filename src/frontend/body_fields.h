// The fields of a request's body by name. A null counts as not given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace invar {

// A refusal of what stands within a field; its sentence need not name the field.
class FieldError : public UsageError {
 public:
  FieldError(std::string_view field, const std::string& sentence)
      : UsageError(sentence), field_(field) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// f(); what it refuses is said of the field, unless it says so of another one.
template <typename F>
auto within(std::string_view field, F f) {
  try {
    return f();
  } catch (const FieldError&) {
    throw;
  } catch (const UsageError& error) {
    throw FieldError(field, error.what());
  }
}

template <size_t N>
bool among(std::string_view name, const std::string_view (&names)[N]) {
  return std::ranges::find(names, name) != std::end(names);
}

// All throw UsageError, with the field's name, where a value is not of its kind.
class BodyFields {
 public:
  // `body` outlives this.
  explicit BodyFields(const json::Value& body) : body_(body) {}

  const json::Value* find(std::string_view name) const;  // null: not given
  // These leave the value as it is where the field is not given.
  void read_integer(std::string_view name, int32_t& value, int64_t low) const;
  void read_number(std::string_view name, double& value) const;
  bool read_flag(std::string_view name, bool otherwise) const;

 private:
  const json::Value& body_;
};

// A value as an integer of a range, as a text, as tokens of a vocabulary. `most`: bytes or entries.
int64_t integer_of(const json::Value& value, std::string_view name, int64_t low, int64_t high);
const std::string& text_of(const json::Value& value, std::string_view name);
const std::string& text_of(const json::Value& value, std::string_view name, size_t most);
const json::Array& list_of(const json::Value& value, std::string_view name, size_t most);
std::vector<int32_t> token_ids_of(const json::Value& value, std::string_view name, int32_t vocab,
                                  size_t most = SIZE_MAX);

}  // namespace invar
