// The objects and strings of a JSON schema.
#pragma once

#include <vector>

#include "base/json.h"
#include "sampling/grammar/json_text.h"

namespace invar::grammar {

class SchemaCompiler {
 public:
  SchemaCompiler(Language& language, std::string_view whitespace, Spelling spelling)
      : language(language), text(language, whitespace, spelling) {}
  virtual ~SchemaCompiler() = default;

  // The values of a schema.
  virtual Language::Expr add(const json::Value& schema) = 0;
  // SchemaMerger::plain
  virtual std::vector<json::Value> plain(const json::Value& schema) = 0;
  // The answer is to be checked at its end, since the grammar does not hold it to this word whole.
  virtual void check(const char* word) = 0;
  // No value follows a part of the schema, for this reason: a sentence.
  virtual void contradict(std::string reason) = 0;

  Language& language;
  JsonText text;
};

// Both of a plain schema.
StringRules string_rules(const json::Value& schema);
Language::Expr add_object(SchemaCompiler& compiler, const json::Value& schema);

}  // namespace invar::grammar
