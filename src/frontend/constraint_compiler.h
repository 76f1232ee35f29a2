// From what a request asks of its answer's form to a constraint over a tokenizer's tokens.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/json.h"
#include "base/sha256.h"
#include "base/shared.h"
#include "engine/request.h"
#include "sampling/constraint.h"
#include "tokenizer/tokenizer.h"

namespace invar {

// Compiling a form takes longer the larger it is. Throws UsageError for one with more bytes, or
// more texts to choose from, than a request may ask for.
void check_form(const json::Value& what);

// Several threads may call at the same time; none waits while another compiles.
class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // {"regex": pattern}, {"choice": [texts]}, {"grammar": GBNF}, {"json": schema, as an object or in
  // a string} or {"json_object": true}: one of them; beside the last two "whitespace", a pattern of
  // what may stand between tokens (grammar::kCompact). A "thought" (settle_thoughts) beside it, or
  // alone, is for `thought`; alone it holds the answer to nothing: null. Requests that ask for the
  // same share one constraint, so they belong into one engine. Throws UsageError for what is not
  // understood, FormsFull where there is no room now.
  std::shared_ptr<Constraint> compile(const json::Value& what);
  // The rules of "thought" in `what`; null where it has none, or none that changes an answer.
  std::shared_ptr<const ThoughtRules> thought(const json::Value& what);
  // Makes `constraint` and `thought` as the request's `structured_output` says. Answers of one
  // request ask one after another.
  void hold(Request& request);

  // The bytes of all forms that live.
  size_t form_bytes() const { return memory_->bytes(); }
  // Forms that were compiled, or refused after a try.
  int64_t compiled() const {
    const std::lock_guard lock(mutex_);
    return compiled_;
  }

 private:
  // Kept for the next request that asks for the same: the newest of each.
  static constexpr size_t kMaxKeptBytes = size_t{4} << 20, kMaxKept = 64, kMaxRefusals = 256;

  struct Kept {
    std::shared_ptr<Constraint> constraint;  // or null
    std::string refusal;
    int64_t used = 0;
  };

  // `has_channels`: the form begins with the header of a message.
  std::shared_ptr<const ThoughtMarks> marks_of(ThoughtFormat format, bool has_channels);
  // Marks of the form that are special tokens are text, too.
  std::shared_ptr<const TokenTable> tokens(const json::Value& form);
  std::shared_ptr<Constraint> made(const json::Value& what);
  void keep(const Digest& key, Kept kept);
  void drop_oldest(bool refusals);

  const Tokenizer& tokenizer_;
  const std::shared_ptr<FormMemory> memory_ = std::make_shared<FormMemory>();
  mutable std::mutex mutex_;                  // guards what follows
  std::shared_ptr<const TokenTable> tokens_;  // made when it is needed
  std::shared_ptr<const TokenTable> marked_tokens_;
  std::vector<int32_t> special_;  // that have a text in it
  std::map<Digest, Kept> kept_;
  int64_t uses_ = 0, compiled_ = 0;
  std::map<std::pair<ThoughtFormat, bool>, std::shared_ptr<const ThoughtMarks>> marks_;
  Shared<std::string> last_text_;
  std::shared_ptr<Constraint> last_;
  std::shared_ptr<const ThoughtRules> last_thought_;
};

}  // namespace invar
