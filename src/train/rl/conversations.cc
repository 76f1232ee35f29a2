#include "train/rl/conversations.h"

#include "base/error.h"

namespace invar::rl {

namespace {

void append(Answer& to, const std::vector<int32_t>& tokens, const std::vector<float>& scores,
            bool given) {
  to.given.resize(to.tokens.size());
  to.tokens.insert(to.tokens.end(), tokens.begin(), tokens.end());
  to.log_probabilities.insert(to.log_probabilities.end(), scores.begin(), scores.end());
  to.given.resize(to.tokens.size(), given);
}

// A turn that is going on: of which answer, and where it began in it.
struct Turn {
  size_t answer;
  size_t begin = 0;
};

class Table {
 public:
  Table(Rollout& rollout, const std::vector<Question>& questions, int64_t first_id,
        const Tokenizer& tokenizer, const ConversationOptions& options)
      : rollout_(rollout),
        questions_(questions),
        first_id_(first_id),
        tokenizer_(tokenizer),
        options_(options) {}

  // The turns that follow these, with the questions that they begin with.
  std::vector<Turn> go_on(const std::vector<Turn>& turns, int number,
                          std::vector<Question>& questions) {
    std::vector<Turn> next;
    for (const Turn& turn : turns) {
      const Judgement said = judge(turn, number);
      double& reward = rollout_.rewards[turn.answer];
      if (said.reward) {
        reward = *said.reward;
        continue;
      }
      Answer& answer = rollout_.answers[turn.answer];
      const auto words = tokenizer_.encode(said.message, {.add_special_tokens = false});
      const auto& prompt = questions_[turn.answer].prompt;
      const size_t all = prompt.size() + answer.tokens.size() + words.size();
      if (all >= static_cast<size_t>(options_.context)) continue;  // with its reward of 0
      append(answer, words, std::vector<float>(words.size()), true);
      next.push_back({turn.answer, answer.tokens.size()});
      questions.push_back(questions_[turn.answer]);
      questions.back().prompt.insert(questions.back().prompt.end(), answer.tokens.begin(),
                                     answer.tokens.end());
    }
    return next;
  }

 private:
  Judgement judge(const Turn& turn, int number) const {
    const Answer& answer = rollout_.answers[turn.answer];
    const bool is_last = number + 1 == options_.turns;
    const Judgement said =
        options_.judge({.problem = rollout_.problems[turn.answer / rollout_.answers_each],
                        .answer = tokenizer_.decode(std::span(answer.tokens).subspan(turn.begin)),
                        .ended = answer.ended,
                        .conversation = first_id_ + static_cast<int64_t>(turn.answer),
                        .turn = number,
                        .is_last = is_last});
    if (!said.reward && is_last)
      fail("expected a reward after the last of {} turns ([rollouts] turns), found a message",
           options_.turns);
    return said;
  }

  Rollout& rollout_;
  const std::vector<Question>& questions_;
  const int64_t first_id_;
  const Tokenizer& tokenizer_;
  const ConversationOptions& options_;
};

}  // namespace

void converse(Rollout& rollout, const std::vector<Question>& questions, int64_t first_id,
              int64_t step, Rollouts& rollouts, const Tokenizer& tokenizer,
              const ConversationOptions& options) {
  rollout.answers = rollouts.answer(questions, step);
  rollout.rewards.assign(questions.size(), 0.0);
  std::vector<Turn> turns;
  for (size_t i = 0; i < questions.size(); ++i) turns.push_back({i});
  Table table(rollout, questions, first_id, tokenizer, options);
  for (int number = 0; !turns.empty(); ++number) {
    std::vector<Question> asked;
    turns = table.go_on(turns, number, asked);
    if (turns.empty()) break;
    std::vector<Answer> answers = rollouts.answer(asked, step);
    for (size_t i = 0; i < turns.size(); ++i) {
      Answer& whole = rollout.answers[turns[i].answer];
      append(whole, answers[i].tokens, answers[i].log_probabilities, false);
      whole.ended = answers[i].ended;
      whole.routed_experts = std::move(answers[i].routed_experts);
    }
  }
}

}  // namespace invar::rl
