#include "frontend/body_fields.h"

#include "base/error.h"

namespace invar {

const json::Value* BodyFields::find(std::string_view name) const {
  const json::Value* value = body_.find(name);
  return value && value->is_null() ? nullptr : value;
}

void BodyFields::read_integer(std::string_view name, int32_t& value, int64_t low) const {
  if (const json::Value* v = find(name))
    value = static_cast<int32_t>(integer_of(*v, name, low, INT32_MAX));
}

void BodyFields::read_number(std::string_view name, double& value) const {
  const json::Value* v = find(name);
  if (v && !v->is_number()) fail_usage("expected {} as a number, found {}", name, v->type_name());
  if (v) value = v->as_number();
}

bool BodyFields::read_flag(std::string_view name, bool otherwise) const {
  const json::Value* v = find(name);
  if (v && !v->is_bool())
    fail_usage("expected {} as true or false, found {}", name, v->type_name());
  return v ? v->as_bool() : otherwise;
}

int64_t integer_of(const json::Value& value, std::string_view name, int64_t low, int64_t high) {
  if (!value.is_number())
    fail_usage("expected {} as an integer, found {}", name, value.type_name());
  const auto found = value.to_integer();
  if (!found || *found < low || *found > high)
    fail_usage("expected {} as an integer from {} to {}, found {}", name, low, high,
               json::excerpt(value));
  return *found;
}

const std::string& text_of(const json::Value& value, std::string_view name) {
  if (!value.is_string()) fail_usage("expected {} as a text, found {}", name, value.type_name());
  return value.as_string();
}

const std::string& text_of(const json::Value& value, std::string_view name, size_t most) {
  const std::string& text = text_of(value, name);
  if (text.size() > most)
    fail_usage("expected {} of at most {} bytes, found {}", name, most, text.size());
  return text;
}

const json::Array& list_of(const json::Value& value, std::string_view name, size_t most) {
  if (!value.is_array()) fail_usage("expected {} as an array, found {}", name, value.type_name());
  const json::Array& list = value.as_array();
  if (list.size() > most) fail_usage("expected at most {} {}, found {}", most, name, list.size());
  return list;
}

std::vector<int32_t> token_ids_of(const json::Value& value, std::string_view name, int32_t vocab,
                                  size_t most) {
  std::vector<int32_t> tokens;
  for (const json::Value& id : list_of(value, name, most))
    tokens.push_back(static_cast<int32_t>(integer_of(id, name, 0, vocab - 1)));
  return tokens;
}

}  // namespace invar
