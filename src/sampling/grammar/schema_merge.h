// JSON schemas without references and combinations: $ref, allOf, anyOf, oneOf and what stands
// beside them become plain schemas, any of which a value may follow.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "sampling/grammar/budget.h"
#include "sampling/grammar/schema_words.h"

namespace invar::grammar {

class SchemaMerger {
 public:
  SchemaMerger(const json::Value& root, Budget& budget) : references_(root), budget_(budget) {}

  // Schemas of plain words, in one way to write each: type as a list, const as enum, a list of
  // items as prefixItems, pattern and format as lists. Throws UsageError for words that are not
  // what they must be.
  std::vector<json::Value> plain(const json::Value& schema) { return plain(schema, 0); }

  const json::Value& resolve(const json::Value& ref) const { return references_.resolve(ref); }
  // A word that plain ones do not say whole, and that answers are to be checked for; or null.
  const char* checked_word() const { return checked_; }

 private:
  std::vector<json::Value> plain(const json::Value& schema, int level);
  void combine(std::vector<json::Value>& found, const std::vector<json::Value>& others);

  static constexpr int kMaxLevel = 64;
  static constexpr size_t kMaxPlain = 1000;
  // Schemas that are looked at, of all that are merged.
  static constexpr int kMaxMerged = 50'000;

  std::vector<json::Value> implied(const json::Value& schema);
  json::Value opposite_of(const json::Value& schema, const char* word);

  const SchemaReferences references_;
  Budget& budget_;
  const char* checked_ = nullptr;
  int merged_ = 0;
};

// A schema of values that follow both.
json::Value both_schemas(const json::Value& a, const json::Value& b, Budget& budget);

// An integer from 0 on: `otherwise` where there is none, and where it is greater than any answer is
// long.
int32_t schema_count(const json::Value& schema, const char* word, int32_t otherwise);

}  // namespace invar::grammar
