#include "train/rl/rollout_scores.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "train/trainer.h"

namespace invar::rl {

PackedAnswers RolloutScores::pack(const Rollout& rollout, std::span<const size_t> chosen) const {
  std::vector<const std::vector<int32_t>*> prompts, answers;
  for (const size_t i : chosen) {
    prompts.push_back(&rollout.prompt_of(i));
    answers.push_back(&rollout.answers[i].tokens);
  }
  const TrainerOptions& t = recipe_.trainer;
  PackedAnswers packed = pack_answers(prompts, answers, t.context, t.groups, t.model.eos_ids[0]);
  for (size_t n = 0; n < chosen.size(); ++n)
    for (int32_t i = 0; i < packed.places[n].tokens; ++i)
      if (rollout.answers[chosen[n]].is_given(static_cast<size_t>(i))) {
        const PackedAnswers::Place& place = packed.places[n];
        packed.rows[place.row].weights[static_cast<size_t>(place.first + i)] = 0;
      }
  if (recipe_.sampler.replays_routes) replay_routes(rollout, chosen, packed);
  return packed;
}

int64_t RolloutScores::first_position(const Rollout& rollout, size_t answer,
                                      const PackedAnswers::Place& place) const {
  return place.first + 1 - std::ssize(rollout.prompt_of(answer));
}

void RolloutScores::replay_routes(const Rollout& rollout, std::span<const size_t> chosen,
                                  PackedAnswers& packed) const {
  for (size_t n = 0; n < chosen.size(); ++n) {
    const PackedAnswers::Place& place = packed.places[n];
    std::vector<int16_t>& routes = packed.rows[place.row].routes;
    routes.resize(static_cast<size_t>(recipe_.trainer.context * columns_), -1);
    std::ranges::copy(rollout.answers[chosen[n]].routed_experts,
                      routes.begin() + first_position(rollout, chosen[n], place) * columns_);
  }
}

void RolloutScores::compare_routes(int64_t step, const Rollout& rollout, Trainer& trainer,
                                   RlProgress& p) const {
  std::vector<size_t> all(rollout.answers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  PackedAnswers packed = pack(rollout, all);
  for (PackedRow& row : packed.rows) row.routes.clear();
  const std::vector<int32_t> own = trainer.routed_experts(packed.rows);
  const auto context = static_cast<int64_t>(recipe_.trainer.context);
  for (const size_t i : all) {
    const PackedAnswers::Place& place = packed.places[i];
    const int64_t row = static_cast<int64_t>(place.row);
    const int32_t* theirs =
        &own[static_cast<size_t>((row * context + first_position(rollout, i, place)) * columns_)];
    const std::vector<int16_t>& sampler = rollout.answers[i].routed_experts;
    for (size_t at = 0; at < sampler.size();)
      for (const LayerSpec& layer : recipe_.trainer.model.spec.layer_specs) {
        const auto chosen = static_cast<size_t>(layer.chosen_experts());
        if (chosen == 0) continue;
        ++p.mismatch.routes;
        p.mismatch.different_routes += !std::equal(theirs + at, theirs + at + chosen, &sampler[at]);
        at += chosen;
      }
  }
  if (recipe_.samples_trained_policy() && p.mismatch.different_routes > 0)
    fail("step {}: expected the trainer's experts, found others in {} of the sampler's {} routes",
         step, p.mismatch.different_routes, p.mismatch.routes);
}

TokenScores RolloutScores::score(const Rollout& rollout, Trainer& trainer) const {
  std::vector<size_t> all(rollout.answers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const PackedAnswers packed = pack(rollout, all);
  std::vector<float> entropies;
  const std::vector<float> found = trainer.log_probabilities(packed.rows, &entropies);
  TokenScores scores;
  double tokens = 0;
  for (const Answer& answer : rollout.answers) tokens += static_cast<double>(answer.sampled());
  for (const PackedAnswers::Place& place : packed.places) {
    const auto first = found.begin() + place.index(recipe_.trainer.context);
    scores.log_probabilities.emplace_back(first, first + place.tokens);
  }
  for (const float entropy : entropies) scores.entropy += double{entropy} / tokens;
  return scores;
}

void RolloutScores::expect_one_policy(int64_t step, const Rollout& rollout,
                                      const TokenScores& scores) const {
  if (!recipe_.samples_trained_policy()) return;
  for (size_t i = 0; i < rollout.answers.size(); ++i)
    for (size_t t = 0; t < rollout.answers[i].tokens.size(); ++t) {
      const float sampler = rollout.answers[i].log_probabilities[t];
      const float trainer = scores.log_probabilities[i][t];
      if (sampler != trainer && !rollout.answers[i].is_given(t))
        fail(
            "step {}: expected the trainer's log-probability {}, found {} from the sampler for "
            "sequence {}, position {}",
            step, trainer, sampler, i, rollout.prompt_of(i).size() + t);
    }
}

Mismatch RolloutScores::mismatch(const Rollout& rollout, const TokenScores& scores) const {
  MismatchMeter meter(recipe_.policy.clip, recipe_.policy.clip_high);
  for (size_t i = 0; i < rollout.answers.size(); ++i)
    for (size_t t = 0; t < rollout.answers[i].tokens.size(); ++t)
      if (!rollout.answers[i].is_given(t))
        meter.add(rollout.answers[i].log_probabilities[t], scores.log_probabilities[i][t]);
  return meter.result();
}

}  // namespace invar::rl
