// Reads a JSON object key by key and remembers which keys were asked for, so that a key that nobody
// knows can be refused by name at the end.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace invar {

class ConfigReader {
 public:
  // `object` must outlive the reader; `where` names it in errors ("config.json").
  ConfigReader(const json::Value& object, std::string where);

  const std::string& where() const { return where_; }

  // The value, or nullptr when the key is absent or null. Marks the key as known, as all below do.
  const json::Value* take(std::string_view key);
  // Whether the key stands there as null.
  bool is_null(std::string_view key) const;

  // Each throws Error when the value is of another type or outside [low, high]; an absent or null
  // key gives `fallback`, or is an error in the form without one.
  int64_t integer(std::string_view key, int64_t low, int64_t high);
  int64_t integer(std::string_view key, int64_t low, int64_t high, int64_t fallback);
  double number(std::string_view key, double low, double high);
  double number(std::string_view key, double low, double high, double fallback);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);

  bool has(std::string_view key) const { return object_.find(key) != nullptr; }
  // Whether it was asked for.
  bool is_known(std::string_view key) const { return known_.contains(key); }
  // Marks keys that cannot change the arithmetic.
  void ignore(std::span<const std::string_view> keys);
  // Throws Error naming the first key that was never asked for.
  void refuse_others() const;

 private:
  const json::Value& require(std::string_view key);

  const json::Value& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace invar
