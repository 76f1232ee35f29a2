// Trainers of one, two and four ranks and a sampler of four say the same of every token (T4 of
// "Deterministic Inference Across Tensor Parallel Sizes", whose gap is the largest difference of
// two probabilities).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "engine/model_description.h"
#include "gap_case.h"
#include "train/rl/packing.h"
#include "train/trainer.h"
#include "weights/weights_digest.h"

namespace invar::rl {
namespace {

constexpr int kAnswerTokens = 16, kSamplerRanks = 4;

ModelOptions sampler() {
  return {.model = "tiny", .load_format = "dummy:1", .threads = 4, .ranks = kSamplerRanks};
}

TrainerOptions trainer_of(int ranks) {
  TrainerOptions options;
  options.model = read_model_config(sampler());
  options.context = kContext;
  options.rows = 4;
  options.groups = 4;
  options.optimizer = {.rate = 1e-3, .warmup = 1, .steps = 10};
  options.ranks = ranks;
  options.threads = 1;
  return options;
}

// The largest difference of two probabilities of one token.
double gap(Trainer& trainer, const std::vector<Question>& questions,
           const std::vector<Answer>& answers) {
  std::vector<const std::vector<int32_t>*> prompts, tokens;
  for (const Question& question : questions) prompts.push_back(&question.prompt);
  for (const Answer& answer : answers) tokens.push_back(&answer.tokens);
  const PackedAnswers packed = pack_answers(prompts, tokens, kContext, 4, 0);
  const std::vector<float> trained = trainer.log_probabilities(packed.rows);
  double largest = 0;
  for (size_t i = 0; i < answers.size(); ++i)
    for (int t = 0; t < packed.places[i].tokens; ++t)
      largest = std::max(largest,
                         std::fabs(std::exp(double{trained[packed.places[i].index(kContext) + t]}) -
                                   std::exp(double{answers[i].log_probabilities[t]})));
  return largest;
}

TEST(ProbabilityGap, IsZeroWhateverTheRanks) {
  const bool full = std::getenv("INVAR_FULL_TESTS") != nullptr;
  const std::vector<Question> asked = questions(full ? 1000 : 40);
  EngineOptions engine;
  engine.scheduler.max_model_len = kContext;
  engine.scheduler.max_num_seqs = 16;
  engine.kv_bytes = 16 << 20;
  Rollouts sampling({.model = sampler(), .engine = engine}, {.max_tokens = kAnswerTokens});
  std::string digest;
  for (const int ranks : {1, 2, 4}) {
    Trainer trainer(trainer_of(ranks), 7);
    for (int step = 0; step < 3; ++step) trainer.step(rows_of_step(step));
    ThreadPool pool(1);
    const std::string own =
        to_hex(weights_digest(trainer.weights(), trainer.weights().names(), pool));
    if (digest.empty()) digest = own;
    EXPECT_EQ(own, digest) << ranks << " ranks";
    sampling.take_weights(trainer.weights());
    const std::vector<Answer> answers = sampling.answer(asked, 3);
    EXPECT_EQ(gap(trainer, asked, answers), 0.0) << ranks << " ranks";
    // The control: a step later the trainer says something else.
    trainer.step(rows_of_step(3));
    EXPECT_GT(gap(trainer, asked, answers), 0.0);
  }
}

}  // namespace
}  // namespace invar::rl
