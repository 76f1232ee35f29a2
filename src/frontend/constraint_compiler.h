// From what a request asks of its answer's form to a constraint over a tokenizer's tokens.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/shared.h"
#include "sampling/constraint.h"
#include "tokenizer/tokenizer.h"

namespace invar {

class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // {"regex": pattern}, {"choice": [texts]}, {"grammar": GBNF}, {"json": schema, as an object or in
  // a string} or {"json_object": true}: one of them; beside the last two "whitespace", a pattern of
  // what may stand between tokens (grammar::kCompact). Requests that ask for the same share one
  // constraint, so they belong into one engine. Throws UsageError for what is not understood.
  std::shared_ptr<Constraint> compile(const json::Value& what);
  // The same of its JSON. Answers of one request ask one after another.
  std::shared_ptr<Constraint> compile_text(const Shared<std::string>& what);

 private:
  static constexpr size_t kMaxKept = 16;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const TokenTable> tokens_;  // made when it is needed
  std::map<std::string, std::shared_ptr<Constraint>> kept_;
  Shared<std::string> last_text_;
  std::shared_ptr<Constraint> last_;
};

}  // namespace invar
