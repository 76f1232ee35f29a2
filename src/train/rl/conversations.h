// Conversations of a policy with what judges it: one turn, or several in which an environment
// answers.
#pragma once

#include <functional>

#include "tokenizer/tokenizer.h"
#include "train/rl/policy_rows.h"
#include "train/rl/reward_process.h"

namespace invar::rl {

struct ConversationOptions {
  int turns = 1;    // of the policy, at most
  int context = 0;  // tokens of a whole conversation
  std::function<Judgement(const Spoken&)> judge;
};

// Holds a conversation for each question, whose first number is `first_id`, and puts answers and
// rewards into the rollout. The tokens of all turns are one answer. A message that leaves no room
// for an answer ends its conversation with the reward 0. Throws Error where the last turn is judged
// by a message.
void converse(Rollout& rollout, const std::vector<Question>& questions, int64_t first_id,
              int64_t step, Rollouts& rollouts, const Tokenizer& tokenizer,
              const ConversationOptions& options);

}  // namespace invar::rl
