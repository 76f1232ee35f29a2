// Members of a receipt's JSON, as they are read: strict, so that one receipt has one form.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/shared.h"
#include "frontend/receipt.h"

namespace invar {

// The shortest text that reads back as the same number; the number of such a text.
std::string number_text(double number);
std::optional<double> number_of_text(std::string_view text);

// Takes the members of an object one by one; what is left at the end is a fault.
class ReceiptMembers {
 public:
  ReceiptMembers(const json::Value& value, std::string what);

  json::Value take(const char* name);
  void take(const char* name, std::string& to);
  void take(const char* name, bool& to);
  void take(const char* name, double& to);
  void take(const char* name, int64_t& to);
  void take(const char* name, int32_t& to);
  void take(const char* name, uint64_t& to);
  void take(const char* name, std::vector<int32_t>& to);
  void take(const char* name, std::vector<std::string>& to);
  void take(const char* name, std::vector<std::vector<int32_t>>& to);
  void take(const char* name, std::vector<std::pair<int32_t, double>>& to);
  template <typename T>
  void take(const char* name, Shared<T>& to) {
    take(name, to.edit());
  }

  bool has(const char* name) const;
  void expect_end() const;

 private:
  [[noreturn]] void wrong(const char* name, const char* expected, const json::Value& found) const;
  int64_t integer(const char* name, const json::Value& value, int64_t low, int64_t high) const;
  double number(const char* name, const json::Value& value) const;
  json::Array list(const char* name, const json::Value& value) const;
  std::vector<int32_t> integers(const char* name, const json::Value& value) const;

  std::string what_;
  json::Object left_;
};

// A receipt has these members of its model; model_members gives them back.
void take_model(ReceiptMembers& from, ReceiptModel& model);
json::Object model_members(const ReceiptModel& model);

// Every kind of receipt begins with these members. Throws Error for a version of another program.
template <typename R>
void take_head(ReceiptMembers& from, R& receipt) {
  int32_t version = 0;
  from.take("invar_receipt", version);
  if (version != kReceiptVersion)
    fail("a receipt: expected version {}, found {}", kReceiptVersion, version);
  from.take("id", receipt.id);
  from.take("created", receipt.created);
  from.take("model", receipt.name);
  from.take("context", receipt.context);
  take_model(from, receipt.model);
}

}  // namespace invar
