#include "weights/gguf_keys.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace invar {

std::string GgufKeys::key(std::string_view name) const {
  return fmt::format("{}.{}", architecture_, name);
}

const json::Value* GgufKeys::find(std::string_view name) const {
  known_.insert(key(name));
  return file_.find(key(name));
}

void GgufKeys::ignore_if(std::string_view name, const json::Value& only) const {
  const json::Value* found = file_.find(key(name));
  if (!found) return;
  const bool are_numbers = found->is_number() && only.is_number();
  if (only.is_null() || *found == only || (are_numbers && found->as_number() == only.as_number()))
    ignore(name);
}

std::vector<std::string> GgufKeys::others() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : file_.metadata())
    if (name.starts_with(key("")) && !known_.contains(name)) names.push_back(name);
  return names;
}

int64_t GgufKeys::integer(std::string_view name) const {
  const auto found = find_integer(name);
  if (!found) fail("{}: {} is missing", file_.path(), key(name));
  return *found;
}

std::optional<int64_t> GgufKeys::find_integer(std::string_view name) const {
  const json::Value* value = find(name);
  if (!value) return std::nullopt;
  const json::Value* one = value;
  if (value->is_array() && !value->as_array().empty()) {
    one = &value->as_array()[0];
    check_one_for_each_layer(name, value->as_array());
    if (std::ranges::any_of(value->as_array(), [&](const auto& other) { return other != *one; }))
      fail("{}: {}: layers of different sizes are not supported", file_.path(), key(name));
  }
  const auto integer = one->to_integer();
  // No more than what sums and differences of two do not exceed.
  constexpr int64_t kMost = int64_t{1} << 48;
  if (!integer || !one->is_integer() || *integer > kMost || *integer < -kMost)
    fail("{}: {}: expected an integer below 2^48, found {}", file_.path(), key(name),
         json::excerpt(*value));
  return integer;
}

std::vector<int64_t> GgufKeys::integers(std::string_view name) const {
  constexpr int64_t kMostLayers = 4096, kMost = 1 << 30;
  const int64_t layers = integer("block_count");
  if (layers < 1 || layers > kMostLayers)
    fail("{}: {}: expected 1 to {}, found {}", file_.path(), key("block_count"), kMostLayers,
         layers);
  const json::Value* value = find(name);
  if (!value || !value->is_array())
    return std::vector<int64_t>(static_cast<size_t>(layers), integer(name));
  check_one_for_each_layer(name, value->as_array());
  std::vector<int64_t> numbers;
  for (const json::Value& one : value->as_array()) {
    const auto number = one.to_integer();
    if (!number || *number < 0 || *number > kMost)
      fail("{}: {}: expected integers from 0 to 2^30, found {}", file_.path(), key(name),
           json::excerpt(one));
    numbers.push_back(*number);
  }
  return numbers;
}

double GgufKeys::number(std::string_view name) const {
  const auto found = find_number(name);
  if (!found) fail("{}: {} is missing", file_.path(), key(name));
  return *found;
}

std::optional<double> GgufKeys::find_number(std::string_view name) const {
  const json::Value* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->as_number()))
    fail("{}: {}: expected a number, found {}", file_.path(), key(name), json::excerpt(*value));
  return value->as_number();
}

void GgufKeys::check_one_for_each_layer(std::string_view name, const json::Array& list) const {
  const json::Value* layers = find("block_count");
  if (layers && layers->is_integer() && *layers != json::Value(std::ssize(list)))
    fail("{}: {}: expected one for each of {} layers, found {}", file_.path(), key(name),
         json::excerpt(*layers), list.size());
}

const GgufTensor* GgufKeys::tensor(std::string_view name) const {
  for (const GgufFile::Part& part : file_.parts())
    for (const GgufTensor& tensor : part.header.tensors)
      if (tensor.name == name) return &tensor;
  return nullptr;
}

}  // namespace invar
