// From what a request asks of its answer's form to a constraint over a tokenizer's tokens.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/shared.h"
#include "engine/request.h"
#include "sampling/constraint.h"
#include "tokenizer/tokenizer.h"

namespace invar {

class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // {"regex": pattern}, {"choice": [texts]}, {"grammar": GBNF}, {"json": schema, as an object or in
  // a string} or {"json_object": true}: one of them; beside the last two "whitespace", a pattern of
  // what may stand between tokens (grammar::kCompact). A "thought" (settle_thoughts) beside it, or
  // alone, is for `thought`; alone it holds the answer to nothing: null. Requests that ask for the
  // same share one constraint, so they belong into one engine. Throws UsageError for what is not
  // understood.
  std::shared_ptr<Constraint> compile(const json::Value& what);
  // The rules of "thought" in `what`; null where it has none, or none that changes an answer.
  std::shared_ptr<const ThoughtRules> thought(const json::Value& what);
  // Makes both as the request's `structured_output` says. Answers of one request ask one after
  // another.
  void hold(Request& request);

 private:
  static constexpr size_t kMaxKept = 16;

  std::shared_ptr<const ThoughtMarks> marks_of(ThoughtFormat format);

  const Tokenizer& tokenizer_;
  std::shared_ptr<const TokenTable> tokens_;  // made when it is needed
  std::map<std::string, std::shared_ptr<Constraint>> kept_;
  std::map<ThoughtFormat, std::shared_ptr<const ThoughtMarks>> marks_;
  Shared<std::string> last_text_;
  std::shared_ptr<Constraint> last_;
  std::shared_ptr<const ThoughtRules> last_thought_;
};

}  // namespace invar
