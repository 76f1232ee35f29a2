#include "tokenizer/json_field.h"

#include <algorithm>

#include "base/error.h"

namespace invar::tokenizer {

std::string JsonField::where() const {
  return path_.empty() ? file_ : file_ + ": " + path_;
}

namespace {

// A sentence may name what the file says, however long that is: cut, up to a whole character.
std::string shortened(std::string_view text) {
  constexpr size_t kMost = 400;
  if (text.size() <= kMost) return std::string(text);
  size_t end = kMost;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace

void JsonField::refuse(std::string_view why) const {
  fail("{}: {}", shortened(where()), shortened(why));
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  object();
  const json::Value* value = value_->find(key);
  if (!value || value->is_null()) return std::nullopt;
  return JsonField(*value, file_, fmt::format("{}{}{}", path_, path_.empty() ? "" : ".", key));
}

JsonField JsonField::at(std::string_view key) const {
  auto field = find(key);
  if (!field) refuse(fmt::format("\"{}\" is missing", key));
  return *std::move(field);
}

JsonField JsonField::element(size_t index) const {
  return JsonField(array().at(index), file_, fmt::format("{}[{}]", path_, index));
}

JsonField JsonField::member(size_t index) const {
  const auto& [key, value] = object().at(index);
  return JsonField(value, file_, fmt::format("{}{}{}", path_, path_.empty() ? "" : ".", key));
}

const std::string& JsonField::string() const {
  if (!value_->is_string()) refuse(fmt::format("expected a string, found {}", value_->type_name()));
  return value_->as_string();
}

bool JsonField::boolean() const {
  if (!value_->is_bool()) refuse(fmt::format("expected a boolean, found {}", value_->type_name()));
  return value_->as_bool();
}

int64_t JsonField::integer(int64_t low, int64_t high) const {
  if (!value_->is_number())
    refuse(fmt::format("expected an integer, found {}", value_->type_name()));
  const auto found = value_->to_integer();
  if (!found || *found < low || *found > high)
    refuse(fmt::format("expected an integer from {} to {}, found {}", low, high,
                       json::excerpt(*value_)));
  return *found;
}

const json::Array& JsonField::array() const {
  if (!value_->is_array()) refuse(fmt::format("expected an array, found {}", value_->type_name()));
  return value_->as_array();
}

const json::Object& JsonField::object() const {
  if (!value_->is_object())
    refuse(fmt::format("expected an object, found {}", value_->type_name()));
  return value_->as_object();
}

void JsonField::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      refuse(fmt::format("\"{}\" is not supported", key));
}

}  // namespace invar::tokenizer
