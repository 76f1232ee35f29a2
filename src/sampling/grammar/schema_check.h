// Whether a value follows a JSON schema: for the words that a grammar cannot hold an answer to.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "sampling/grammar/budget.h"
#include "sampling/grammar/schema_words.h"
#include "sampling/grammar/unique_items.h"

namespace invar::grammar {

class SchemaCheck {
 public:
  // Checks texts of a normal schema.
  explicit SchemaCheck(json::Value root) : root_(std::move(root)), references_(root_) {}
  SchemaCheck(const SchemaCheck&) = delete;

  // A sentence that names what a whole answer does not follow, or null.
  const char* fault_of(std::string_view answer) const;
  // Whether a sentence is one of these.
  static bool is_fault(std::string_view sentence);
  bool follows(const json::Value& schema, const json::Value& value) const;
  // Where an answer begins, if the schema has arrays whose items must differ.
  std::optional<UniqueItems> unique_items() const;

 private:
  class Visit;

  const json::Value root_;
  const SchemaReferences references_;
};

}  // namespace invar::grammar
