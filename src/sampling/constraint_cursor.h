// Where one answer stands in its thought and then in the language that it is held to, and what may
// come next there. Answers
// on several threads may share a constraint; each has a cursor of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sampling/constraint.h"
#include "sampling/params.h"
#include "sampling/thought.h"

namespace invar {

inline constexpr const char* kFormTooLarge =
    "the form that the answer is held to is too large: what may come next can be understood in so "
    "many ways that finding it takes more steps than an answer has";

class ConstraintCursor {
 public:
  // Null: no constraint, everything may come; no rules for thoughts. `vocab`: of the model's
  // logits.
  ConstraintCursor(std::shared_ptr<Constraint> constraint,
                   std::shared_ptr<const ThoughtRules> thought, int32_t vocab);

  // Bit i of word i / 64: token i may be sampled next; a stop token may where the text may end, and
  // nowhere else. Empty where all may. Valid until the next call. The cost is entered in the
  // answer's tally; too much is an error().
  std::span<const uint64_t> allowed(const SamplingParams& params);
  // The answer goes on with an allowed token.
  void advance(int32_t token, const SamplingParams& params);
  // Whether something may follow.
  bool goes_on() const;
  // Steps that its constraint has done for it so far.
  int64_t work() const { return work_; }
  // A sentence that names what the answer does not follow though its form lets it end here, or
  // null.
  const char* fault_at_end() const;
  // A sentence once the grammar needs too much: what is sampled next ends the answer. Else null.
  const char* error() const { return error_; }

 private:
  void exclude_repeats();

  std::shared_ptr<Constraint> constraint_;
  ThoughtCursor thought_;
  size_t words_;  // of a mask
  Constraint::State state_;
  ConstraintTally tally_;
  std::string text_;  // of the answer, where it is checked at its end
  std::vector<uint64_t> allowed_;
  bool is_found_ = false;  // what the constraint allows at this place
  int64_t work_ = 0;
  const char* error_ = nullptr;
  std::optional<grammar::UniqueItems> unique_;
};

}  // namespace invar
