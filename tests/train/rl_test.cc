// The parts of reinforcement learning against values computed by hand or in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "train/rl/mismatch.h"
#include "train/rl/packing.h"
#include "train/rl/policy.h"
#include "train/rl/problems.h"
#include "train/rl/rounding.h"
#include "training_case.h"

namespace invar::rl {
namespace {

TEST(Advantages, AreThoseComputedByHand) {
  // Leave one out: 1 - 1/3, 0 - 2/3, ...
  const std::vector<double> rewards = {1, 0, 0, 1};
  const std::vector<double> expected = {2.0 / 3, -2.0 / 3, -2.0 / 3, 2.0 / 3};
  const std::vector<double> leave_one_out = advantages(Method::reinforce, rewards);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(leave_one_out[i], expected[i], 1e-15);
  // Mean 1/4, deviation over n - 1: sqrt((9 + 1 + 1 + 1) / 16 / 3) = 1/2.
  const std::vector<double> grpo = advantages(Method::grpo, std::vector<double>{0, 1, 0, 0});
  EXPECT_EQ(grpo, (std::vector<double>{-0.5, 1.5, -0.5, -0.5}));
  EXPECT_EQ(advantages(Method::rloo, rewards), leave_one_out);
  EXPECT_EQ(advantages(Method::dapo, std::vector<double>{0, 1, 0, 0}), grpo);
  EXPECT_EQ(advantages(Method::dr_grpo, std::vector<double>{0, 1, 0, 0}),
            (std::vector<double>{-0.25, 0.75, -0.25, -0.25}));
  for (const Method method :
       {Method::reinforce, Method::rloo, Method::grpo, Method::dr_grpo, Method::dapo})
    EXPECT_EQ(advantages(method, std::vector<double>{1, 1, 1}), std::vector<double>(3, 0.0));
}

TEST(Shares, AreTheAveragesOfTheMethods) {
  EXPECT_EQ(token_share(Method::reinforce, 4, 8, 5), 1.0);
  EXPECT_EQ(token_share(Method::rloo, 4, 8, 5), 1.0);
  EXPECT_EQ(token_share(Method::grpo, 4, 8, 5), 0.25);
  EXPECT_EQ(token_share(Method::dr_grpo, 4, 8, 5), 0.125);
  EXPECT_EQ(token_share(Method::dapo, 4, 8, 5), 0.2);
}

TEST(Corrections, AreTheFormulas) {
  PolicyOptions o{.clip = 0.2, .cap = 2};
  EXPECT_EQ(correction_weight(o, -0.5, 3.0), -0.5);
  o.correction = Correction::truncated;
  EXPECT_EQ(correction_weight(o, -0.5, 3.0), -1.0);
  EXPECT_EQ(correction_weight(o, -0.5, 0.5), -0.25);
  o.correction = Correction::clipped;
  EXPECT_EQ(correction_weight(o, 1.0, 1.25), 0.0);
  EXPECT_EQ(correction_weight(o, 1.0, 0.5), 0.5);
  EXPECT_EQ(correction_weight(o, -1.0, 1.25), -1.25);
  EXPECT_EQ(correction_weight(o, -1.0, 0.5), 0.0);
  o.clip_high = 0.28;  // DAPO's
  EXPECT_EQ(correction_weight(o, 1.0, 1.25), 1.25);
  EXPECT_EQ(correction_weight(o, 1.0, 1.375), 0.0);
  EXPECT_EQ(correction_weight(o, -1.0, 0.75), 0.0);
  // One policy: every correction is the same and exact.
  EXPECT_EQ(importance_ratio(-1.625f, -1.625f), 1.0);
  for (const Correction c : {Correction::none, Correction::truncated, Correction::clipped}) {
    o.correction = c;
    EXPECT_EQ(correction_weight(o, 0.3, importance_ratio(-7.1f, -7.1f)), 0.3);
  }
}

TEST(Mismatch, IsExactlyNothingBetweenEquals) {
  MismatchMeter meter(0.2);
  for (const float x : {-0.1f, -3.7f, -1e-30f}) meter.add(x, x);
  const Mismatch same = meter.result();
  EXPECT_EQ(same.different, 0);
  EXPECT_EQ(same.k1, 0.0);
  EXPECT_EQ(same.k2, 0.0);
  EXPECT_EQ(same.k3, 0.0);
  EXPECT_EQ(same.largest_difference, 0.0);
  EXPECT_EQ(same.smallest_ratio, 1.0);
  EXPECT_EQ(same.largest_ratio, 1.0);
  EXPECT_EQ(same.ratio_deviation, 0.0);
  EXPECT_EQ(same.clip_fraction, 0.0);

  meter.add(-1.0f, -0.5f);  // d = 1/2
  const Mismatch m = meter.result();
  EXPECT_EQ(m.different, 1);
  EXPECT_NEAR(m.k1, -0.5 / 4, 1e-12);
  EXPECT_NEAR(m.k2, 0.125 / 4, 1e-12);
  EXPECT_NEAR(m.k3, (std::exp(0.5) - 1.5) / 4, 1e-12);
  EXPECT_NEAR(m.largest_ratio, std::exp(0.5), 1e-12);
  EXPECT_EQ(m.clip_fraction, 0.25);
}

// ---- The gradient of the whole loss, through the model, against finite differences in float64.

struct LossCase {
  PolicyOptions options;
  std::vector<double> advantage;                       // of each sequence
  std::vector<std::vector<float>> sampler, reference;  // log-probabilities of each position
};

// -log-probability of every position, by the float64 decoder.
std::vector<std::vector<double>> losses_f64(const DecoderSpec& spec, const ParameterLayout& layout,
                                            const std::vector<double>& parameters,
                                            std::vector<Example> examples) {
  std::vector<std::vector<double>> losses;
  for (Example& example : examples) {
    losses.emplace_back();
    for (size_t t = 0; t < example.tokens.size(); ++t) {
      std::ranges::fill(example.weights, 0.0);
      example.weights[t] = 1;
      losses.back().push_back(loss_f64(spec, layout, parameters, {example}));
    }
  }
  return losses;
}

// The loss as the papers write it, of every position of all sequences.
double policy_loss(const LossCase& c, const std::vector<std::vector<double>>& losses) {
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    for (size_t t = 0; t < losses[i].size(); ++t) {
      const double lp = -losses[i][t], a = c.advantage[i];
      const double ratio = std::exp(lp - double{c.sampler[i][t]});
      if (c.options.correction == Correction::clipped)
        sum -= std::min(ratio * a, std::clamp(ratio, 1 - c.options.clip, 1 + c.options.clip) * a);
      else
        sum -= a * lp;
      const double d = double{c.reference[i][t]} - lp;
      sum += c.options.reference * (std::exp(d) - 1 - d);
    }
  return sum;
}

// The relative error of the slope along the engine's gradient, which is the gradient's length.
double disagreement(const LossCase& c, const DecoderSpec& spec, const std::vector<bf16_t>& weights,
                    const std::vector<Example>& examples, TrainingCase& training) {
  const ParameterLayout layout(spec);
  const int64_t offset = layout.offset(TensorRole::down, 0);
  const int64_t count = int64_t{spec.hidden} * spec.layer(0).ffn_width();
  const std::vector<float> gradients = training.total();
  double length = 0;
  for (int64_t i = 0; i < count; ++i)
    length += double{gradients[offset + i]} * gradients[offset + i];
  length = std::sqrt(length);
  const auto at = [&](double way) {
    std::vector<double> moved;
    for (const bf16_t w : weights) moved.push_back(bf16_to_f32(w));
    for (int64_t i = 0; i < count; ++i) moved[offset + i] += way * gradients[offset + i] / length;
    return policy_loss(c, losses_f64(spec, layout, moved, examples));
  };
  return std::fabs((at(1e-4) - at(-1e-4)) / 2e-4 / length - 1);
}

TEST(PolicyLoss, HasTheGradientOfFiniteDifferences) {
  const DecoderSpec spec = tiny_models()[3].spec;
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
  std::vector<Example> examples = random_examples(spec, {9, 23}, 2);
  std::vector<double> parameters;
  for (const bf16_t w : weights) parameters.push_back(bf16_to_f32(w));
  const auto losses = losses_f64(spec, ParameterLayout(spec), parameters, examples);
  LossCase c{{.correction = Correction::clipped, .clip = 0.2, .reference = 1.0},
             {0.7, -1.1},
             {{}, {}},
             {{}, {}}};
  int clipped = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    for (size_t t = 0; t < losses[i].size(); ++t) {
      // Far from the edges 0.8 and 1.2, beyond which nothing is learned.
      const double d = std::array{-0.5, 0.1, 0.4, -0.1}[t % 4];
      const auto trainer = static_cast<float>(-losses[i][t]);
      c.sampler[i].push_back(static_cast<float>(trainer - d));
      c.reference[i].push_back(trainer + (t % 3 ? 0.3f : -0.2f));
      const double ratio = importance_ratio(c.sampler[i][t], trainer);
      const double weight = correction_weight(c.options, c.advantage[i], ratio);
      clipped += weight == 0;
      examples[i].weights[t] = weight + reference_weight(c.options, c.reference[i][t], trainer);
    }
  EXPECT_GT(clipped, 5);
  TrainingCase training(spec, weights, 32);
  training.run(examples);
  EXPECT_LT(disagreement(c, spec, weights, examples, training), 0.02);
  // The check sees a clip that is not there, and another weight of the reference.
  LossCase wrong = c;
  wrong.options.clip = 10;
  EXPECT_GT(disagreement(wrong, spec, weights, examples, training), 0.02);
  wrong = c;
  wrong.options.reference = 0.3;
  EXPECT_GT(disagreement(wrong, spec, weights, examples, training), 0.02);
}

// ---- Problems, packing, rounding

TEST(Problems, RewardTheRightAnswerAndNoOther) {
  for (int64_t i = 0; i < 300; ++i) {
    const Problem p = make_problem(1, corpus::Split::problems, i, kAllTasks);
    EXPECT_EQ(p.task, static_cast<Task>(i % 3));
    EXPECT_EQ(reward(p, p.right, true), 1.0) << p.right;
    EXPECT_EQ(reward(p, p.right, false), 0.0);
    EXPECT_EQ(reward(p, "", true), 0.0);
    EXPECT_EQ(reward(p, p.right + "1", true), 0.0);
    EXPECT_NE(p.prompt, make_problem(2, corpus::Split::problems, i, kAllTasks).prompt);
  }
  const Problem json{Task::format, "", R"([{"name": "Anna", "count": 3}])"};
  EXPECT_EQ(reward(json, R"([{"name":"Otto", "count":77}])", true), 1.0);
  EXPECT_EQ(reward(json, R"([{"name": "Anna", "count": "3"}])", true), 0.0);
  EXPECT_EQ(reward(json, R"([{"name": "Anna", "age": 3}])", true), 0.0);
  EXPECT_EQ(reward(json, R"([{"name": "Anna", "count": 3}, 1])", true), 0.0);
  const Problem sum{Task::arithmetic, "", "2 + 2 = 4.\nThe answer is 4."};
  EXPECT_EQ(reward(sum, "The answer is 4.", true), 1.0);
  EXPECT_EQ(reward(sum, "2 + 2 = 4.\nThe answer is 5.", true), 0.0);
  EXPECT_EQ(make_problem(1, corpus::Split::problems, 5, bit_of(Task::copying)).task, Task::copying);
}

TEST(Packing, PutsEveryAnswerWhereItSays) {
  std::vector<std::vector<int32_t>> prompts, answers;
  for (int i = 0; i < 9; ++i) {
    prompts.emplace_back(static_cast<size_t>(3 + 5 * i % 11), 100 + i);
    answers.emplace_back(static_cast<size_t>(1 + 7 * i % 20), 200 + i);
  }
  std::vector<const std::vector<int32_t>*> p, a;
  for (int i = 0; i < 9; ++i) p.push_back(&prompts[i]), a.push_back(&answers[i]);
  const PackedAnswers packed = pack_answers(p, a, 32, 4, 7);
  EXPECT_EQ(packed.rows.size() % 4, 0u);
  size_t wanted = 0, tokens = 0;
  for (const PackedRow& row : packed.rows) {
    EXPECT_EQ(row.tokens.size(), 32u);
    for (const float w : row.weights) wanted += w != 0;
  }
  for (int i = 0; i < 9; ++i) {
    const auto& slot = packed.places[i];
    EXPECT_EQ(slot.tokens, std::ssize(answers[i]));
    for (int t = 0; t < slot.tokens; ++t) {
      EXPECT_EQ(packed.rows[slot.row].targets[slot.first + t], 200 + i);
      EXPECT_EQ(packed.rows[slot.row].weights[slot.first + t], 1.0f);
    }
    tokens += answers[i].size();
  }
  EXPECT_EQ(wanted, tokens);
}

// The largest number of a format of whole numbers, 0 for fp8.
int largest_whole(const std::string& format) {
  if (!format.starts_with("int")) return 0;
  return (1 << (format[3] - '1')) - 1;
}

// How far rounding may move x in a group with this largest magnitude.
float half_step(const std::string& format, float x, float largest) {
  if (const int whole = largest_whole(format)) return largest / static_cast<float>(2 * whole);
  return std::max(std::fabs(x) / 16, largest / 448 / 1024);
}

class RoundingTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RoundingTest, MovesMatricesByHalfAStepAtMost) {
  const DecoderSpec spec = tiny_models()[3].spec;
  const ParameterLayout layout(spec);
  const std::vector<bf16_t> weights = random_weights(layout, 3);
  const std::vector<bf16_t> rounded =
      rounded_weights(layout, ParameterSource(layout, weights.data()), GetParam());
  int64_t moved = 0;
  for (const ParameterLayout::Slot& slot : layout.slots())
    for (int64_t i = slot.offset; i < slot.offset + slot.count; ++i) {
      moved += rounded[i] != weights[i];
      if (slot.tensor.shape.size() != 2) {
        EXPECT_EQ(rounded[i], weights[i]) << slot.tensor.name;
        continue;
      }
      const int64_t in_row = (i - slot.offset) % slot.tensor.shape[1];
      const int64_t begin = i - in_row % kRoundingGroup;
      const int64_t end = std::min(begin + kRoundingGroup, i - in_row + slot.tensor.shape[1]);
      float largest = 0;
      std::set<bf16_t> values;
      for (int64_t j = begin; j < end; ++j) {
        largest = std::max(largest, std::fabs(bf16_to_f32(weights[j])));
        values.insert(rounded[j] & 0x7fff);
      }
      const float x = bf16_to_f32(weights[i]);
      EXPECT_LE(std::fabs(bf16_to_f32(rounded[i]) - x),
                half_step(GetParam(), x, largest) + largest / 256);
      const auto whole = static_cast<size_t>(largest_whole(GetParam()));
      EXPECT_LE(values.size(), whole ? whole + 1 : 128);
    }
  EXPECT_GT(moved, layout.size() / 4);
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundingTest, ::testing::ValuesIn(rounding_formats()));

}  // namespace
}  // namespace invar::rl
