#include "train/rl/policy_rows.h"

namespace invar::rl {

std::vector<double> advantages_of(const Rollout& rollout, Method method) {
  std::vector<double> all;
  for (size_t i = 0; i < rollout.rewards.size(); i += rollout.answers_each) {
    const auto one = advantages(
        method, std::span<const double>(rollout.rewards).subspan(i, rollout.answers_each));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::vector<size_t> Lesson::chosen() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < advantages.size(); ++i)
    if (advantages[i] != 0 || reference) found.push_back(i);
  if (found.empty()) found.push_back(0);
  return found;
}

void weigh(const Lesson& lesson, const PolicyOptions& policy, std::span<const size_t> chosen,
           PackedAnswers& rows) {
  const Rollout& rollout = lesson.rollout;
  double all = 0;
  for (const Answer& answer : rollout.answers) all += static_cast<double>(answer.sampled());
  const double mean = all / static_cast<double>(rollout.answers.size());
  for (size_t n = 0; n < chosen.size(); ++n) {
    const size_t i = chosen[n];
    const Answer& answer = rollout.answers[i];
    const double share =
        token_share(policy.method, static_cast<double>(answer.sampled()), lesson.most_tokens, mean);
    const auto& place = rows.places[n];
    float* weights = &rows.rows[place.row].weights[static_cast<size_t>(place.first)];
    for (size_t t = 0; t < answer.tokens.size(); ++t) {
      const float trainer = lesson.scores.log_probabilities[i][t];
      if (answer.is_given(t)) continue;
      double weight = correction_weight(policy, lesson.advantages[i],
                                        importance_ratio(answer.log_probabilities[t], trainer));
      if (lesson.reference)
        weight += reference_weight(policy, lesson.reference->log_probabilities[i][t], trainer);
      weights[t] = static_cast<float>(weight * share);
    }
  }
}

}  // namespace invar::rl
