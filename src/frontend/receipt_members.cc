#include "frontend/receipt_members.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace invar {

std::string number_text(double number) {
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr};
}

std::optional<double> number_of_text(std::string_view text) {
  double number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc() || !std::isfinite(number) || number_text(number) != text)
    return std::nullopt;
  return number;
}

ReceiptMembers::ReceiptMembers(const json::Value& value, std::string what)
    : what_(std::move(what)) {
  if (!value.is_object())
    fail("a receipt: expected {} as an object, found {}", what_, value.type_name());
  left_ = value.as_object();
}

json::Value ReceiptMembers::take(const char* name) {
  const auto found = std::ranges::find(left_, name, &json::Member::first);
  if (found == left_.end()) fail("a receipt: expected \"{}\" in {}, found none", name, what_);
  json::Value value = std::move(found->second);
  left_.erase(found);
  return value;
}

void ReceiptMembers::take(const char* name, std::string& to) {
  const json::Value value = take(name);
  if (!value.is_string()) wrong(name, "a text", value);
  to = value.as_string();
}
void ReceiptMembers::take(const char* name, bool& to) {
  const json::Value value = take(name);
  if (!value.is_bool()) wrong(name, "true or false", value);
  to = value.as_bool();
}
void ReceiptMembers::take(const char* name, double& to) {
  to = number(name, take(name));
}
void ReceiptMembers::take(const char* name, int64_t& to) {
  to = integer(name, take(name), 0, int64_t{1} << 53);
}
void ReceiptMembers::take(const char* name, int32_t& to) {
  to = static_cast<int32_t>(integer(name, take(name), INT32_MIN, INT32_MAX));
}
void ReceiptMembers::take(const char* name, uint64_t& to) {
  const json::Value value = take(name);
  const std::string text = value.is_string() ? value.as_string() : "";
  const auto end = std::from_chars(text.data(), text.data() + text.size(), to);
  if (end.ec != std::errc() || std::to_string(to) != text)
    wrong(name, "the text of an integer, 0 or more", value);
}
void ReceiptMembers::take(const char* name, std::vector<int32_t>& to) {
  to = integers(name, take(name));
}
void ReceiptMembers::take(const char* name, std::vector<std::string>& to) {
  for (const json::Value& one : list(name, take(name))) {
    if (!one.is_string()) wrong(name, "texts", one);
    to.push_back(one.as_string());
  }
}
void ReceiptMembers::take(const char* name, std::vector<std::vector<int32_t>>& to) {
  for (const json::Value& one : list(name, take(name))) to.push_back(integers(name, one));
}
void ReceiptMembers::take(const char* name, std::vector<std::pair<int32_t, double>>& to) {
  for (const json::Value& one : list(name, take(name))) {
    if (!one.is_array() || one.as_array().size() != 2)
      wrong(name, "pairs of a token and a number", one);
    to.emplace_back(integer(name, one.as_array()[0], INT32_MIN, INT32_MAX),
                    number(name, one.as_array()[1]));
  }
}

bool ReceiptMembers::has(const char* name) const {
  return std::ranges::find(left_, name, &json::Member::first) != left_.end();
}
void ReceiptMembers::expect_end() const {
  if (!left_.empty())
    fail("a receipt: {} has {}, which no receipt has", what_, json::quoted(left_[0].first));
}

void ReceiptMembers::wrong(const char* name, const char* expected, const json::Value& found) const {
  fail("a receipt: expected {} of {} as {}, found {}", name, what_, expected, json::excerpt(found));
}
int64_t ReceiptMembers::integer(const char* name, const json::Value& value, int64_t low,
                                int64_t high) const {
  const auto found = value.is_number() ? value.to_integer() : std::nullopt;
  if (!found || *found < low || *found > high) wrong(name, "an integer", value);
  return *found;
}
double ReceiptMembers::number(const char* name, const json::Value& value) const {
  const auto found = value.is_string() ? number_of_text(value.as_string()) : std::nullopt;
  if (!found) wrong(name, "the shortest text of a number", value);
  return *found;
}
json::Array ReceiptMembers::list(const char* name, const json::Value& value) const {
  if (!value.is_array()) wrong(name, "a list", value);
  return value.as_array();
}
std::vector<int32_t> ReceiptMembers::integers(const char* name, const json::Value& value) const {
  std::vector<int32_t> all;
  for (const json::Value& one : list(name, value))
    all.push_back(static_cast<int32_t>(integer(name, one, INT32_MIN, INT32_MAX)));
  return all;
}

void take_model(ReceiptMembers& from, ReceiptModel& model) {
  from.take("arithmetic", model.arithmetic);
  from.take("specification", model.specification);
  from.take("weights", model.weights);
  from.take("tokenizer", model.tokenizer);
  from.take("chat_template", model.chat_template);
  from.take("defaults", model.defaults);
  if (from.has("adapter")) from.take("adapter", model.adapter);
}

json::Object model_members(const ReceiptModel& model) {
  json::Object all{{"arithmetic", model.arithmetic},
                   {"specification", model.specification},
                   {"weights", model.weights},
                   {"tokenizer", model.tokenizer},
                   {"chat_template", model.chat_template},
                   {"defaults", model.defaults}};
  if (!model.adapter.empty()) all.emplace_back("adapter", model.adapter);
  return all;
}

}  // namespace invar
