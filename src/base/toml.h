// Settings in TOML, read strictly: every error names the file, the line, the key, what was expected
// and what was found; keys that nobody asks for are refused.
#pragma once

#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace invar {

// Reads a file. Throws Error when it cannot be read, UsageError when it is not TOML.
toml::table parse_toml(const std::string& path);

// One table of the file. Every key that it is asked for is known; the rest is refused at the end.
class TomlSection {
 public:
  TomlSection(const toml::table* table, std::string name, const std::string& file)
      : table_(table), name_(std::move(name)), file_(file) {}

  const std::string& file() const { return file_; }
  bool has(const char* key) const { return table_ && table_->contains(key); }

  void get(const char* key, std::string& value) {
    if (const toml::node* node = find(key)) {
      if (!node->is_string()) fail_type(*node, key, "a string");
      value = **node->as_string();
    }
  }
  // One of `choices`.
  void get(const char* key, std::string& value, const std::vector<std::string>& choices) {
    get(key, value);
    const toml::node* node = find(key);
    if (node && std::find(choices.begin(), choices.end(), value) == choices.end())
      fail_usage("{}: expected {} to be one of {}, found \"{}\"", at(*node), quoted(key),
                 fmt::join(choices, ", "), value);
  }
  void get(const char* key, std::vector<int>& values, int low, int high) {
    const toml::node* node = find(key);
    if (!node) return;
    if (!node->is_array() || node->as_array()->empty()) fail_type(*node, key, "a list of integers");
    values.clear();
    for (const toml::node& item : *node->as_array()) {
      if (!item.is_integer()) fail_type(item, key, "a list of integers");
      const int64_t found = **item.as_integer();
      if (found < low || found > high)
        fail_usage("{}: expected {} to hold integers from {} to {}, found {}", at(item),
                   quoted(key), low, high, found);
      values.push_back(static_cast<int>(found));
    }
  }
  // A list of strings of `choices`; absent is empty.
  std::vector<std::string> names(const char* key, const std::vector<std::string>& choices) {
    return strings(key, [&](const toml::node& item, const std::string& name) {
      if (std::find(choices.begin(), choices.end(), name) == choices.end())
        fail_usage("{}: expected {} to hold some of {}, found \"{}\"", at(item), quoted(key),
                   fmt::join(choices, ", "), name);
    });
  }
  // A list of strings; absent is empty.
  std::vector<std::string> strings(const char* key) {
    return strings(key, [](const toml::node&, const std::string&) {});
  }
  void get(const char* key, bool& value) {
    if (const toml::node* node = find(key)) {
      if (!node->is_boolean()) fail_type(*node, key, "true or false");
      value = **node->as_boolean();
    }
  }
  template <typename T>
  requires std::is_integral_v<T>
  void get(const char* key, T& value, int64_t low, int64_t high) {
    if (const toml::node* node = find(key)) {
      if (!node->is_integer()) fail_type(*node, key, "an integer");
      const int64_t found = **node->as_integer();
      if (found < low || found > high)
        fail_usage("{}: expected {} from {} to {}, found {}", at(*node), quoted(key), low, high,
                   found);
      value = static_cast<T>(found);
    }
  }
  template <typename T>
  requires std::is_floating_point_v<T>
  void get(const char* key, T& value, double low, double high) {
    if (const toml::node* node = find(key)) {
      const auto found = node->value<double>();
      if (!node->is_number() || !found) fail_type(*node, key, "a number");
      if (!(*found >= low && *found <= high))
        fail_usage("{}: expected {} from {} to {}, found {}", at(*node), quoted(key), low, high,
                   *found);
      value = static_cast<T>(*found);
    }
  }
  void require(const char* key) const {
    if (!has(key)) fail_usage("{}: expected {}, found no such key", file_, quoted(key));
  }
  const toml::node* find(const char* key) {
    known_.insert(key);
    return table_ ? table_->get(key) : nullptr;
  }
  // A table of its own; absent is empty.
  TomlSection section(const char* key) {
    const toml::node* node = find(key);
    if (node && !node->is_table()) fail_type(*node, key, "a table");
    return {node ? node->as_table() : nullptr, inner(key), file_};
  }
  std::vector<TomlSection> list(const char* key) {
    const toml::node* node = find(key);
    std::vector<TomlSection> sections;
    if (!node) return sections;
    if (!node->is_array()) fail_type(*node, key, "a list of tables");
    for (const toml::node& item : *node->as_array()) {
      if (!item.is_table()) fail_type(item, key, "a list of tables");
      sections.push_back({item.as_table(), inner(key), file_});
    }
    return sections;
  }
  void finish() const {
    if (!table_) return;
    for (const auto& [key, node] : *table_)
      if (!known_.contains(std::string(key.str())))
        fail_usage("{}: expected {}, found {}", at(node), fmt::join(known_, ", "),
                   quoted(std::string(key.str()).c_str()));
  }

 private:
  std::string inner(const char* key) const { return name_.empty() ? key : name_ + "." + key; }
  std::string quoted(const char* key) const { return "\"" + inner(key) + "\""; }
  std::string at(const toml::node& node) const {
    return fmt::format("{} line {}", file_, node.source().begin.line);
  }
  [[noreturn]] void fail_type(const toml::node& node, const char* key, const char* expected) const {
    fail_usage("{}: expected {} to be {}, found another type", at(node), quoted(key), expected);
  }
  template <typename Check>
  std::vector<std::string> strings(const char* key, const Check& check) {
    std::vector<std::string> found;
    const toml::node* node = find(key);
    if (!node) return found;
    if (!node->is_array()) fail_type(*node, key, "a list of strings");
    for (const toml::node& item : *node->as_array()) {
      if (!item.is_string()) fail_type(item, key, "a list of strings");
      found.push_back(**item.as_string());
      check(item, found.back());
    }
    return found;
  }

  const toml::table* table_;
  std::string name_;
  const std::string& file_;
  std::set<std::string> known_;
};

}  // namespace invar
