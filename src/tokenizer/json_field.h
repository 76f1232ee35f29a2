// Reading JSON files that others wrote: every error names the file and the field.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace invar::tokenizer {

// A value, its file and its path in the file ("model.merges[3]"). The document must outlive it.
class JsonField {
 public:
  // The document itself; its path is empty.
  JsonField(const json::Value& document, std::string file)
      : value_(&document), file_(std::move(file)) {}

  const json::Value& value() const { return *value_; }
  std::string where() const;  // "file: path", as errors begin

  // Members of an object. Absent and null are the same.
  std::optional<JsonField> find(std::string_view key) const;
  JsonField at(std::string_view key) const;  // throws Error when absent
  JsonField element(size_t index) const;     // of an array
  JsonField member(size_t index) const;      // of an object, in the order of the file

  // Throws Error naming the field when it is of another type.
  const std::string& string() const;
  bool boolean() const;
  int64_t integer(int64_t low, int64_t high) const;
  const json::Array& array() const;
  const json::Object& object() const;

  // Throws Error for the first member that is not among `keys`.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  // Throws Error: the field, then what is wrong with it.
  [[noreturn]] void refuse(std::string_view why) const;

 private:
  JsonField(const json::Value& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const json::Value* value_;
  std::string file_, path_;
};

}  // namespace invar::tokenizer
