#include "model/families/config_reader.h"

#include "base/error.h"

namespace invar {

ConfigReader::ConfigReader(const json::Value& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail("{}: expected a JSON object, found {}", where_, object.type_name());
}

const json::Value* ConfigReader::take(std::string_view key) {
  known_.emplace(key);
  const json::Value* value = object_.find(key);
  return value && !value->is_null() ? value : nullptr;
}

bool ConfigReader::is_null(std::string_view key) const {
  const json::Value* value = object_.find(key);
  return value && value->is_null();
}

const json::Value& ConfigReader::require(std::string_view key) {
  const json::Value* value = take(key);
  if (!value) fail("{}: the key \"{}\" is missing", where_, key);
  return *value;
}

int64_t ConfigReader::integer(std::string_view key, int64_t low, int64_t high) {
  const json::Value& value = require(key);
  const auto found = value.to_integer();
  if (!found || *found < low || *found > high)
    fail("{}: \"{}\": expected an integer from {} to {}, found {}", where_, key, low, high,
         json::excerpt(value));
  return *found;
}

int64_t ConfigReader::integer(std::string_view key, int64_t low, int64_t high, int64_t fallback) {
  return take(key) ? integer(key, low, high) : fallback;
}

double ConfigReader::number(std::string_view key, double low, double high) {
  const json::Value& value = require(key);
  if (!value.is_number() || !(value.as_number() >= low && value.as_number() <= high))
    fail("{}: \"{}\": expected a number from {} to {}, found {}", where_, key, low, high,
         json::excerpt(value));
  return value.as_number();
}

double ConfigReader::number(std::string_view key, double low, double high, double fallback) {
  return take(key) ? number(key, low, high) : fallback;
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  const json::Value* value = take(key);
  if (!value) return fallback;
  if (!value->is_bool())
    fail("{}: \"{}\": expected true or false, found {}", where_, key, json::excerpt(*value));
  return value->as_bool();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) {
  const json::Value* value = take(key);
  if (!value) return std::string(fallback);
  if (!value->is_string())
    fail("{}: \"{}\": expected a string, found {}", where_, key, json::excerpt(*value));
  return value->as_string();
}

void ConfigReader::ignore(std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

void ConfigReader::refuse_others() const {
  for (const auto& [key, value] : object_.as_object())
    if (!known_.contains(key))
      fail(
          "{}: the key {} is not known and may change the arithmetic; where it does not, "
          "--ignore-config-keys {} reads on",
          where_, json::quoted(key), key);
}

}  // namespace invar
