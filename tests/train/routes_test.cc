// A trainer and a sampler of a model with experts, step after step: of every token of an answer
// both say the same and send it to the same experts. A conventional sampler (`control`) of the same
// weights does not: that is what RL on such models suffers from.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "engine/model_description.h"
#include "gap_case.h"
#include "train/rl/packing.h"
#include "train/trainer.h"

namespace invar::rl {
namespace {

constexpr int kAnswerTokens = 16;

ModelOptions model_of(const std::string& arithmetic) {
  return {.model = "tiny-moe", .load_format = "dummy:1", .arithmetic = arithmetic, .threads = 2};
}

TrainerOptions trainer_options(int steps) {
  TrainerOptions options;
  options.model = read_model_config(model_of("portable"));
  options.balance = 0.01;
  options.context = kContext;
  options.rows = 4;
  options.groups = 2;
  options.optimizer = {.rate = 1e-3, .warmup = 1, .steps = steps};
  options.threads = 2;
  return options;
}

struct Differences {
  int64_t tokens = 0, other_tokens = 0;  // of answers; with another log-probability
  int64_t routes = 0, other_routes = 0;  // of a token in a layer; with other experts
  double divergence = 0;                 // sum of the sampler's log-probability minus the trainer's
  double distance = 0;                   // sum of their absolute differences

  void print(const char* name) const {
    std::printf(
        "%s: %lld of %lld log-probabilities differ, KL %.3g a token, %.3f %% of %lld routes "
        "differ\n",
        name, static_cast<long long>(other_tokens), static_cast<long long>(tokens),
        divergence / tokens, 100.0 * other_routes / routes, static_cast<long long>(routes));
  }
};

class Comparison {
 public:
  Comparison(const char* arithmetic, Trainer& trainer)
      : trainer_(trainer),
        sampler_(
            [&] {
              EngineOptions engine;
              engine.scheduler.max_model_len = kContext;
              engine.scheduler.max_num_seqs = 8;
              engine.kv_bytes = 16 << 20;
              return InstanceOptions{.model = model_of(arithmetic), .engine = engine};
            }(),
            {.max_tokens = kAnswerTokens}) {}

  // Answers of the sampler with the trainer's weights, as the trainer sees them.
  void run(std::vector<Question> asked, int step) {
    sampler_.take_weights(trainer_.weights());
    for (Question& question : asked) {
      question.seed += static_cast<uint64_t>(step) << 32;
      question.routed_experts = true;
    }
    const std::vector<Answer> answers = sampler_.answer(asked, step);
    std::vector<const std::vector<int32_t>*> prompts, tokens;
    for (const Question& question : asked) prompts.push_back(&question.prompt);
    for (const Answer& answer : answers) tokens.push_back(&answer.tokens);
    PackedAnswers packed = pack_answers(prompts, tokens, kContext, 2, 0);
    const std::vector<float> trained = trainer_.log_probabilities(packed.rows);
    const std::vector<int32_t> routed = trainer_.routed_experts(packed.rows);
    for (size_t i = 0; i < answers.size(); ++i) {
      const int64_t first = packed.places[i].index(kContext);  // says the answer's first token
      count_tokens(answers[i], &trained[first], found);
      const int64_t begin = first - std::ssize(asked[i].prompt) + 1;
      count_routes(answers[i], &routed[begin * columns_], found);
    }
    replay(asked, answers, packed);
  }

  Differences found, replayed;

  // The rows of the last answers, with the experts of the sampler's.
  std::vector<PackedRow> rows;

 private:
  // The same once more with the sampler's experts.
  void replay(const std::vector<Question>& asked, const std::vector<Answer>& answers,
              PackedAnswers& packed) {
    for (size_t i = 0; i < answers.size(); ++i) {
      const PackedAnswers::Place& place = packed.places[i];
      std::vector<int16_t>& routes = packed.rows[place.row].routes;
      routes.resize(kContext * columns_, -1);
      std::ranges::copy(answers[i].routed_experts,
                        &routes[(place.first + 1 - asked[i].prompt.size()) * columns_]);
    }
    const std::vector<float> trained = trainer_.log_probabilities(packed.rows);
    const std::vector<int32_t> routed = trainer_.routed_experts(packed.rows);
    for (size_t i = 0; i < answers.size(); ++i) {
      const int64_t first = packed.places[i].index(kContext);
      count_tokens(answers[i], &trained[first], replayed);
      count_routes(answers[i], &routed[(first - std::ssize(asked[i].prompt) + 1) * columns_],
                   replayed);
    }
    rows = packed.rows;
  }

  static void count_tokens(const Answer& answer, const float* trained, Differences& found) {
    for (size_t t = 0; t < answer.tokens.size(); ++t) {
      const float sampled = answer.log_probabilities[t];
      ++found.tokens;
      found.other_tokens += sampled != trained[t];
      found.divergence += double{sampled} - double{trained[t]};
      found.distance += std::abs(double{sampled} - double{trained[t]});
    }
  }

  void count_routes(const Answer& answer, const int32_t* trained, Differences& found) const {
    ASSERT_EQ(answer.routed_experts.size() % columns_, 0);
    for (size_t at = 0; at < answer.routed_experts.size(); at += chosen_) {
      ++found.routes;
      found.other_routes +=
          !std::equal(trained + at, trained + at + chosen_, answer.routed_experts.begin() + at);
    }
  }

  Trainer& trainer_;
  Rollouts sampler_;
  const size_t columns_ = routed_columns(trainer_.options().model.spec);
  const size_t chosen_ = trainer_.options().model.spec.layer(0).experts()->routing.chosen;
};

TEST(Routes, TrainerAndSamplerAgree) {
  const bool full = std::getenv("INVAR_FULL_TESTS") != nullptr;
  const int steps = full ? 1000 : 12;
  Trainer trainer(trainer_options(steps), 7);
  Comparison own("portable", trainer), control("control", trainer);
  const std::vector<Question> asked = questions(8);
  for (int step = 0; step < steps; ++step) {
    trainer.step(rows_of_step(step));
    own.run(asked, step);
    control.run(asked, step);
  }
  own.found.print("portable");
  control.found.print("control");
  control.replayed.print("control, replayed");
  EXPECT_EQ(own.found.tokens, int64_t{steps} * 8 * kAnswerTokens);
  EXPECT_EQ(own.found.other_tokens, 0);
  EXPECT_EQ(own.found.divergence, 0.0);
  EXPECT_EQ(own.found.other_routes, 0);
  EXPECT_EQ(own.replayed.other_tokens, 0);
  EXPECT_EQ(own.replayed.other_routes, 0);
  // What is replayed is what the trainer computes with; log-probabilities are nearer then, but
  // not the sampler's.
  EXPECT_EQ(control.replayed.other_routes, 0);
  EXPECT_GT(control.replayed.other_tokens, 0);
  EXPECT_LT(control.replayed.distance, control.found.distance);
  EXPECT_GT(control.found.other_tokens, 0);  // the control
  EXPECT_GT(control.found.other_routes, 0);
}

// A step with routes that are given: what is computed again for the backward is computed with them,
// too, and routers of their own would have given other weights.
TEST(Routes, ATrainersStepReplaysThem) {
  Trainer first(trainer_options(3), 7);
  Comparison control("control", first);
  control.run(questions(8), 0);
  std::vector<PackedRow> rows = control.rows;
  for (PackedRow& row : rows)
    if (row.routes.empty()) row.weights.assign(row.weights.size(), 0.0f);
  std::vector<std::vector<float>> weights;
  for (const int with : {0, 1, 2}) {  // 1: recomputed; 2: without
    TrainerOptions options = trainer_options(3);
    options.recompute = with == 1;
    if (with == 2)
      for (PackedRow& row : rows) row.routes.clear();
    Trainer trainer(options, 7);
    trainer.step(rows);
    TrainingState state;
    trainer.copy_state(state);
    weights.push_back(std::move(state.master));
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_NE(weights[0], weights[2]);
}

TEST(Routes, ThoseThatCannotBeAreRefused) {
  Trainer trainer(trainer_options(3), 7);
  std::vector<PackedRow> rows = rows_of_step(0);
  const size_t columns = routed_columns(trainer.options().model.spec);
  rows[1].routes.assign(kContext * columns, -1);
  trainer.log_probabilities(rows);  // as the routers say
  rows[1].routes[0] = 3;            // and then no higher one
  EXPECT_THROW(trainer.log_probabilities(rows), Error);
  rows[1].routes.assign(columns, -1);
  EXPECT_THROW(trainer.log_probabilities(rows), Error);
}

}  // namespace
}  // namespace invar::rl
