// JSON schemas without references and combinations: $ref, allOf, anyOf, oneOf and what stands
// beside them become plain schemas, any of which a value may follow.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "sampling/grammar/budget.h"

namespace invar::grammar {

// What says nothing of a value's form: titles, defaults, remarks.
bool is_annotation(std::string_view word);

class SchemaMerger {
 public:
  SchemaMerger(const json::Value& root, Budget& budget) : root_(root), budget_(budget) {}

  // Schemas of plain words, in one way to write each: type as a list, const as enum, a list of
  // items as prefixItems, pattern and format as lists. Throws UsageError for words that are not
  // supported.
  std::vector<json::Value> plain(const json::Value& schema) { return plain(schema, 0); }

  const json::Value& resolve(const json::Value& ref) const;

 private:
  std::vector<json::Value> plain(const json::Value& schema, int level);
  void combine(std::vector<json::Value>& found, const std::vector<json::Value>& others);

  static constexpr int kMaxLevel = 64;
  static constexpr size_t kMaxPlain = 1000;
  // Schemas that are looked at, of all that are merged.
  static constexpr int kMaxMerged = 50'000;

  const json::Value& root_;
  Budget& budget_;
  int merged_ = 0;
};

// A schema of values that follow both.
json::Value both_schemas(const json::Value& a, const json::Value& b, Budget& budget);

// An integer from 0 on: `otherwise` where there is none, and where it is greater than any answer is
// long.
int32_t schema_count(const json::Value& schema, const char* word, int32_t otherwise);

}  // namespace invar::grammar
