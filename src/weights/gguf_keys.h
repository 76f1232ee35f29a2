// A GGUF file's metadata by the keys of its architecture: which were asked for, and the sentence
// for each that is not as expected.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "weights/gguf.h"

namespace invar {

// Keys of the file's architecture, with its name in front.
class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture) {}

  const GgufFile& file() const { return file_; }
  std::string key(std::string_view name) const;
  const json::Value* find(std::string_view name) const;
  void ignore(std::string_view name) const { known_.insert(key(name)); }
  // Where its value is this one, which changes nothing; null: whatever it is.
  void ignore_if(std::string_view name, const json::Value& only) const;
  // Keys of the architecture that nobody has asked for.
  std::vector<std::string> others() const;

  // The number of all layers, where a list has one for each.
  int64_t integer(std::string_view name) const;
  std::optional<int64_t> find_integer(std::string_view name) const;
  // One for each layer, whether the file has a list or one number for all.
  std::vector<int64_t> integers(std::string_view name) const;
  double number(std::string_view name) const;
  std::optional<double> find_number(std::string_view name) const;

  void check_one_for_each_layer(std::string_view name, const json::Array& list) const;

  const GgufTensor* tensor(std::string_view name) const;

 private:
  const GgufFile& file_;
  std::string architecture_;
  mutable std::set<std::string, std::less<>> known_;
};

}  // namespace invar
