// The words of JSON schemas, and the one way to write each.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace invar::grammar {

// Whether a word says nothing of a value's form: titles, remarks, and every word that JSON Schema
// does not know.
bool is_annotation(std::string_view word);
// $ref, allOf and the like: they speak of other schemas.
bool is_combination(std::string_view word);

// A word of no draft: a list of values that are not meant. Schemas that users write do not have it.
inline constexpr const char* kExcluded = "excluded values";

// A word of Invar's own: a Lark grammar that a text follows.
inline constexpr const char* kLark = "x-lark";

// A schema in which words whose value is null are left out, where a null is a schema it is true,
// and what several drafts write each in their way is written as the last one does.
json::Value normal_schema(const json::Value& schema);

// The schemas that $ref may name in a normal schema.
class SchemaReferences {
 public:
  // `root` outlives this.
  explicit SchemaReferences(const json::Value& root);
  // Throws UsageError where there is none.
  const json::Value& resolve(const json::Value& ref) const;

 private:
  void find_names(const json::Value& value);

  const json::Value& root_;
  std::string base_;                                 // the root's $id
  std::map<std::string, const json::Value*> names_;  // $id, and # before an $anchor
};

}  // namespace invar::grammar
