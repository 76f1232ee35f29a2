// Gradients against finite differences of a float64 decoder, for every kind of parameter of every
// family; and their bits against threads, batches and recomputation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "model/taps.h"
#include "training_case.h"

namespace invar {
namespace {

class Backward : public testing::TestWithParam<TinyModel> {};

// The loss near a model.
class Landscape {
 public:
  Landscape(const DecoderSpec& spec, const std::vector<bf16_t>& weights,
            const std::vector<Example>& examples, const BalanceLoss& balance = {})
      : spec_(spec), layout_(spec), examples_(examples), balance_(balance) {
    for (const bf16_t w : weights) parameters_.push_back(bf16_to_f32(w));
  }

  const ParameterLayout& layout() const { return layout_; }

  // The derivative along `direction`, whose elements stand at `offset` and after it.
  double slope(int64_t offset, const std::vector<double>& direction, double step) {
    const auto at = [&](double way) {
      std::vector<double> moved = parameters_;
      for (size_t i = 0; i < direction.size(); ++i) moved[offset + i] += way * direction[i];
      return loss_f64(spec_, layout_, moved, examples_, balance_);
    };
    return (at(step) - at(-step)) / (2 * step);
  }

 private:
  const DecoderSpec& spec_;
  const ParameterLayout layout_;
  const std::vector<Example>& examples_;
  const BalanceLoss balance_;
  std::vector<double> parameters_;
};

// How far a gradient is from finite differences, of one tensor. Single elements show rounding
// noise, since the engine's products take bf16; along the gradient itself the noise cancels, and
// the slope is the gradient's length.
struct Disagreement {
  double along, elements;  // as parts of the gradient's length, of an element's mean size
  // By so many bars: what rounding adds to the worst of many tensors is more with some seeds.
  bool is_small(double bars = 1) const { return along < 0.02 * bars && elements < 0.06 * bars; }
};

Disagreement disagreement(Landscape& landscape, const ParameterLayout::Slot& slot,
                          const std::vector<float>& gradients) {
  std::vector<double> along(gradients.begin() + slot.offset,
                            gradients.begin() + slot.offset + slot.count);
  double length = 0;
  for (const double g : along) length += g * g;
  length = std::sqrt(length);
  // A tensor that moves nothing has no gradient: the bias of a choice, an expert that nobody chose.
  const bool is_flat = length == 0;
  for (double& g : along) g = is_flat ? 1 : g / length;
  const double slope = landscape.slope(slot.offset, along, 1e-4);
  std::mt19937 random(3);
  constexpr int kSamples = 6;
  double squares = 0;
  for (int i = 0; i < kSamples; ++i) {
    const int64_t index = slot.offset + static_cast<int64_t>(random() % slot.count);
    const double difference = landscape.slope(index, {1.0}, 1e-4) - gradients[index];
    squares += difference * difference;
  }
  const double mean = length / std::sqrt(static_cast<double>(slot.count));
  if (is_flat) return {std::fabs(slope), std::sqrt(squares / kSamples)};
  return {std::fabs(slope / length - 1), std::sqrt(squares / kSamples) / mean};
}

// Sequences of up to `most` positions each.
std::vector<Example> cut_at(size_t most, const std::vector<Example>& examples) {
  std::vector<Example> pieces;
  for (const Example& example : examples)
    for (size_t begin = 0; begin < example.tokens.size(); begin += most) {
      const auto piece = [&](const auto& of) {
        const auto end = std::min(of.size(), begin + most);
        return std::decay_t<decltype(of)>(of.begin() + static_cast<std::ptrdiff_t>(begin),
                                          of.begin() + static_cast<std::ptrdiff_t>(end));
      };
      pieces.push_back({.tokens = piece(example.tokens),
                        .targets = piece(example.targets),
                        .weights = piece(example.weights)});
    }
  return pieces;
}

TEST_P(Backward, AgreesWithFiniteDifferences) {
  const DecoderSpec& spec = GetParam().spec;
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
  TrainingCase training(spec, weights, 64);
  const std::vector<Example> examples = training.run(random_examples(spec, {37, 1, 26}, 2));
  const std::vector<float> gradients = training.total();

  Landscape landscape(spec, weights, examples);
  Disagreement worst{0, 0};
  for (const ParameterLayout::Slot& slot : landscape.layout().slots()) {
    const Disagreement d = disagreement(landscape, slot, gradients);
    EXPECT_TRUE(d.is_small()) << slot.tensor.name << ": " << d.along << ", " << d.elements;
    worst = {std::max(worst.along, d.along), std::max(worst.elements, d.elements)};
  }
  std::printf("%s: slopes differ by up to %.4f, elements by up to %.4f\n", GetParam().name,
              worst.along, worst.elements);
}

// Several splits, windows that end inside them, several leaves of slots.
TEST(LongSequences, AgreeWithFiniteDifferences) {
  DecoderSpec spec = tiny_models()[1].spec;
  spec.layer_specs[0].attention()->window = 0;
  spec.layer_specs[1].attention()->window = 140;
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
  const std::vector<Example> examples = random_examples(spec, {155, 5}, 2);
  TrainingCase training(spec, weights, 160);
  training.run(examples);
  Landscape landscape(spec, weights, examples);
  for (const ParameterLayout::Slot& slot : landscape.layout().slots()) {
    if (slot.tensor.name.find("self_attn") == std::string::npos) continue;
    const Disagreement d = disagreement(landscape, slot, training.total());
    EXPECT_TRUE(d.is_small()) << slot.tensor.name << ": " << d.along << ", " << d.elements;
  }
}

// States that move over boundaries. What does not go back over them is missed.
TEST(LongSequences, OfStatesAgreeWithFiniteDifferences) {
  for (const TinyModel& model : tiny_models_with_states()) {
    const DecoderSpec& spec = model.spec;
    if (spec.mtp_layers > 0) continue;  // its states are those of another
    const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
    const std::vector<Example> examples = random_examples(spec, {155, 5}, 2);
    const auto gradients = [&](const std::vector<Example>& of) {
      TrainingCase training(spec, weights, 160);
      training.run(of);
      return training.total();
    };
    const std::vector<float> right = gradients(examples), cut = gradients(cut_at(64, examples));
    Landscape landscape(spec, weights, examples);
    bool cut_is_wrong = false;
    Disagreement worst{0, 0};
    for (const ParameterLayout::Slot& slot : landscape.layout().slots()) {
      if (taps_of(spec.layer(std::max(slot.tensor.layer, 0))) == 0) continue;
      const Disagreement d = disagreement(landscape, slot, right);
      EXPECT_TRUE(d.is_small()) << slot.tensor.name << ": " << d.along << ", " << d.elements;
      worst = {std::max(worst.along, d.along), std::max(worst.elements, d.elements)};
      cut_is_wrong |= !disagreement(landscape, slot, cut).is_small();
    }
    EXPECT_TRUE(cut_is_wrong) << model.name;
    std::printf("%s: slopes differ by up to %.4f, elements by up to %.4f\n", model.name,
                worst.along, worst.elements);
  }
}

// The check sees a wrong gradient: a window that is off by one, a loss scaled by 1.05.
TEST(FiniteDifferences, SeeWrongGradients) {
  const DecoderSpec spec = tiny_models()[1].spec;
  DecoderSpec wrong = spec;
  wrong.layer_specs[0].attention()->window -= 1;
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
  std::vector<Example> examples = random_examples(spec, {37, 1, 26}, 2);
  Landscape landscape(spec, weights, examples);
  const ParameterLayout::Slot& slot = landscape.layout().slots()[2];
  ASSERT_EQ(slot.tensor.role, TensorRole::q);
  TrainingCase training(wrong, weights, 64);
  training.run(examples);
  EXPECT_FALSE(disagreement(landscape, slot, training.total()).is_small());

  for (Example& example : examples)
    for (double& w : example.weights) w *= 1.05;
  TrainingCase scaled(spec, weights, 64);
  scaled.run(examples);
  for (Example& example : examples)
    for (double& w : example.weights) w /= 1.05;
  EXPECT_FALSE(disagreement(landscape, slot, scaled.total()).is_small());
}

TEST(FiniteDifferences, SeeAWrongScale) {
  for (const auto& [spec, role] :
       {std::pair{tiny_models_of_other_norms()[0].spec, TensorRole::q},
        std::pair{tiny_models_with_latents()[0].spec, TensorRole::key_up},
        std::pair{tiny_models_with_latents()[0].spec, TensorRole::query_down}}) {
    DecoderSpec wrong = spec;
    wrong.layer_specs[1].attention()->score_scale *= 1.3;
    const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
    const std::vector<Example> examples = random_examples(spec, {37, 1, 26}, 2);
    Landscape landscape(spec, weights, examples);
    const int64_t place = landscape.layout().offset(role, 1);
    const auto slot =
        std::ranges::find(landscape.layout().slots(), place, &ParameterLayout::Slot::offset);
    TrainingCase training(wrong, weights, 64);
    training.run(examples);
    EXPECT_FALSE(disagreement(landscape, *slot, training.total()).is_small()) << slot->tensor.name;
  }
}

// That the module which predicts one token further reaches the model: without its part of the
// gradient the slopes of the tensors that it shares are wrong.
TEST(FiniteDifferences, SeeAMissingModule) {
  const DecoderSpec spec = tiny_models()[5].spec;
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
  const std::vector<Example> examples = random_examples(spec, {37, 1, 26}, 2);
  std::vector<Example> without = examples;
  for (Example& example : without)
    std::fill(example.mtp_weights.begin(), example.mtp_weights.end(), 0.0);
  TrainingCase training(spec, weights, 64);
  training.run(without);
  Landscape landscape(spec, weights, examples);
  for (const ParameterLayout::Slot& slot : landscape.layout().slots())
    if (slot.tensor.role == TensorRole::embedding || slot.tensor.role == TensorRole::down) {
      EXPECT_FALSE(disagreement(landscape, slot, training.total()).is_small()) << slot.tensor.name;
    }
}

// A module that reads what the head reads: the gradients of one that reads what stands before that
// norm are wrong, the norm's own among them.
TEST(FiniteDifferences, SeeWhatAModuleReads) {
  const DecoderSpec spec = tiny_models_with_states()[6].spec;
  DecoderSpec before = spec;
  before.family = "qwen3";
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
  const std::vector<Example> examples = random_examples(spec, {37, 1, 26}, 2);
  TrainingCase training(spec, weights, 64), wrong(before, weights, 64);
  training.run(examples);
  wrong.run(examples);
  Landscape landscape(spec, weights, examples);
  using enum TensorRole;
  for (const TensorRole role : {final_norm, hidden_norm, down}) {
    const int64_t place = landscape.layout().offset(role, role == final_norm ? -1
                                                          : role == down     ? 1
                                                                             : 2);
    const auto slot =
        std::ranges::find(landscape.layout().slots(), place, &ParameterLayout::Slot::offset);
    const Disagreement d = disagreement(landscape, *slot, training.total());
    EXPECT_TRUE(d.is_small()) << slot->tensor.name << ": " << d.along << ", " << d.elements;
    EXPECT_FALSE(disagreement(landscape, *slot, wrong.total()).is_small()) << slot->tensor.name;
  }
}

// A module some of whose rows go on from other states, as from what it left itself. With the
// model's in their place gradients would be others.
TEST(FiniteDifferences, SeeWhatAModuleGoesOnFrom) {
  for (const DecoderSpec& spec : {tiny_models_with_states()[6].spec, tiny_models()[5].spec}) {
    const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
    std::vector<Example> examples = random_examples(spec, {37, 1, 26}, 2);
    const std::vector<Example> without = examples;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (Example& example : examples)
      for (int t = 1; t < std::ssize(example.tokens); t += 2)
        for (int i = 0; i < spec.hidden; ++i) example.own[t].push_back(normal(random));
    TrainingCase training(spec, weights, 64), wrong(spec, weights, 64);
    training.run(examples);
    wrong.run(without);
    Landscape landscape(spec, weights, examples);
    using enum TensorRole;
    for (const auto& [role, layer] :
         {std::pair{final_norm, -1}, {hidden_norm, 2}, {embedding, -1}, {down, 1}}) {
      const int64_t place = landscape.layout().offset(role, layer);
      const auto slot =
          std::ranges::find(landscape.layout().slots(), place, &ParameterLayout::Slot::offset);
      const Disagreement d = disagreement(landscape, *slot, training.total());
      EXPECT_TRUE(d.is_small()) << slot->tensor.name << ": " << d.along << ", " << d.elements;
      if (role == final_norm && spec.family == "qwen3") continue;  // the module does not read it
      EXPECT_FALSE(disagreement(landscape, *slot, wrong.total()).is_small()) << slot->tensor.name;
    }
  }
}

// The loss that balances experts, of two packed rows, reaches the routers and what is below them.
// Without it, or with packed rows of another length, the routers' gradients are wrong. In full for
// every tensor of three models.
TEST(ExpertsBalance, AgreesWithFiniteDifferences) {
  const bool is_full = std::getenv("INVAR_FULL_TESTS") != nullptr;
  std::vector<TinyModel> models = {tiny_models()[7], tiny_models_of_experts()[1]};
  if (is_full) models.push_back(tiny_models()[6]);
  for (const auto& [name, spec] : models) {
    SCOPED_TRACE(name);
    const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 1);
    const std::vector<Example> examples =
        TrainingCase(spec, weights, 32).run(random_examples(spec, {19, 13}, 2));
    const BalanceLoss balance{.weight = 4, .rows = 16};
    Landscape landscape(spec, weights, examples, balance);
    const auto run = [&](const BalanceLoss& of) {
      TrainingCase training(spec, weights, 32);
      training.balance = of;
      training.run(examples);
      return training.total();
    };
    const std::vector<float> right = run(balance), without = run({}), other = run({4, 32});
    for (const ParameterLayout::Slot& slot : landscape.layout().slots()) {
      const bool is_router = slot.tensor.role == TensorRole::router;
      if (!is_full && !is_router && slot.tensor.role != TensorRole::post_norm) continue;
      const Disagreement d = disagreement(landscape, slot, right);
      EXPECT_TRUE(d.is_small()) << slot.tensor.name << ": " << d.along << ", " << d.elements;
      if (!is_router) continue;
      EXPECT_FALSE(disagreement(landscape, slot, without).is_small()) << slot.tensor.name;
      EXPECT_FALSE(disagreement(landscape, slot, other).is_small()) << slot.tensor.name;
    }
  }
}

// The experts of the row behind.
std::vector<Example> with_other_experts(const DecoderSpec& spec, std::vector<Example> examples) {
  for (Example& example : examples)
    for (auto& [layer, ids] : example.experts)
      std::ranges::rotate(ids, ids.begin() + spec.layer(layer).chosen_experts());
  return examples;
}

std::vector<Example> without_experts(std::vector<Example> examples) {
  for (Example& example : examples) example.experts.clear();
  return examples;
}

// Seeds of which some have choices so near that rounding turns them: slopes are those of the
// experts that the engine chose. With the float64 decoder's own choices they are others for some of
// these seeds, and with other rows' choices. In full for every tensor.
TEST(ChosenExperts, AgreeWithFiniteDifferencesOfEverySeed) {
  const bool is_full = std::getenv("INVAR_FULL_TESTS") != nullptr;
  std::vector<TinyModel> models = tiny_models_of_experts();
  for (const TinyModel& model : {tiny_models()[6], tiny_models()[7]}) models.push_back(model);
  models.push_back(tiny_models_of_other_norms().back());
  Disagreement worst{0, 0}, worst_own{0, 0};
  const auto add = [](Disagreement& to, const Disagreement& d) {
    to = {std::max(to.along, d.along), std::max(to.elements, d.elements)};
  };
  for (const auto& [name, spec] : models)
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", name, seed));
      const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), seed);
      TrainingCase training(spec, weights, 64);
      const std::vector<Example> examples = training.run(random_examples(spec, {37, 1, 26}, 2));
      const std::vector<Example> own = without_experts(examples),
                                 others = with_other_experts(spec, examples);
      Landscape landscape(spec, weights, examples), of_own(spec, weights, own),
          of_others(spec, weights, others);
      for (const ParameterLayout::Slot& slot : landscape.layout().slots()) {
        const bool is_router = slot.tensor.role == TensorRole::router;
        if (!is_router && !is_full) continue;
        const Disagreement d = disagreement(landscape, slot, training.total());
        EXPECT_TRUE(d.is_small(2)) << slot.tensor.name << ": " << d.along << ", " << d.elements;
        add(worst, d);
        if (!is_router) continue;
        add(worst_own, disagreement(of_own, slot, training.total()));
        if (seed > 1) continue;
        EXPECT_FALSE(disagreement(of_others, slot, training.total()).is_small(2));
      }
    }
  EXPECT_FALSE(worst_own.is_small(2));
  std::printf("by %.4f and %.4f, with choices of its own by %.4f and %.4f\n", worst.along,
              worst.elements, worst_own.along, worst_own.elements);
}

// ---- Bits

// Threads and the cut into batches do not show; the order of examples does.
TEST_P(Backward, BitsDependOnTheExamplesAlone) {
  const DecoderSpec& spec = GetParam().spec;
  const std::vector<bf16_t> weights = random_weights(ParameterLayout(spec), 4);
  const std::vector<int> lengths =
      has_states(spec) ? std::vector{71, 121, 128, 64} : std::vector{23, 9, 64, 32};
  const std::vector<Example> examples = random_examples(spec, lengths, 5);
  const int rows = std::accumulate(lengths.begin(), lengths.end(), 0);
  TrainingCase whole(spec, weights, rows);
  whole.run(examples);

  TrainingCase cut(spec, weights, rows / 2, "scalar", 3);
  cut.run({examples[0], examples[1]});
  cut.run({examples[2]});
  cut.run({examples[3]});
  EXPECT_TRUE(whole.gradients() == cut.gradients());

  TrainingCase again(spec, weights, rows, "scalar", 2, true);
  again.run({examples[0], examples[1], examples[2]});
  again.run({examples[3]});
  EXPECT_TRUE(whole.gradients() == again.gradients());

  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    TrainingCase fast(spec, weights, rows, set.c_str(), 2);
    fast.run(examples);
    EXPECT_TRUE(whole.gradients() == fast.gradients()) << set;
  }

  TrainingCase turned(spec, weights, rows);
  turned.run({examples[3], examples[0], examples[1], examples[2]});
  EXPECT_FALSE(whole.gradients() == turned.gradients());
}

INSTANTIATE_TEST_SUITE_P(Families, Backward, testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(OtherNorms, Backward, testing::ValuesIn(tiny_models_of_other_norms()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Experts, Backward, testing::ValuesIn(tiny_models_of_experts()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Latents, Backward, testing::ValuesIn(tiny_models_with_latents()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(States, Backward, testing::ValuesIn(tiny_models_with_states()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace invar
