// Training on a GPU: the weights of a CPU, bit for bit.
#include "../train/training_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda_check.h"
#include "train/row_packer.h"
#include "train/trainer.h"

namespace invar {
namespace {

// Sequences of random lengths whose later tokens follow from earlier ones.
class Numbers : public DocumentSource {
 public:
  Numbers(int vocab, int longest) : vocab_(vocab), longest_(longest) {}
  Document document(int64_t index) override {
    std::mt19937 random(static_cast<uint32_t>(index));
    Document d;
    int32_t token = static_cast<int32_t>(random() % vocab_);
    for (int i = static_cast<int>(random() % longest_) + 2; i > 0; --i) {
      d.tokens.push_back(token);
      d.wanted.push_back(random() % 8 != 0);
      token = (token * 3 + 1) % vocab_;
    }
    return d;
  }

 private:
  int vocab_, longest_;
};

TrainerOptions options_of(const DecoderSpec& spec, int context = 64) {
  TrainerOptions options;
  options.model.spec = spec;
  options.context = context;
  options.rows = 8;
  options.groups = 4;
  options.batch_rows = 2;
  options.threads = 1;
  options.optimizer = {.rate = 1e-2, .warmup = 2, .steps = 20};
  if (spec.mtp_layers > 0) options.mtp_weight = 0.5f;
  return options;
}

struct Trained {
  TrainingState state;
  std::vector<float> log_probabilities, entropies;
};

// A random start, but for the biases of choices, which a model that has been trained has: without
// them such a start has zeros.
TrainingState start_of(TrainerOptions options, float biases) {
  options.device = "cpu";
  options.ranks = 1;
  TrainingState state;
  Trainer(options, 1).copy_state(state);
  const ParameterLayout layout(options.model.spec);
  for (const ParameterLayout::Slot& slot : layout.slots())
    for (int64_t i = 0; slot.tensor.role == TensorRole::choice_bias && i < slot.count; ++i)
      state.master[static_cast<size_t>(slot.offset + i)] = biases * static_cast<float>(i * 3 % 4);
  return state;
}

Trained train(TrainerOptions options, const std::string& device, int steps = 2,
              float biases = 0.125f) {
  options.device = device;
  Numbers source(options.model.spec.vocab, options.context);
  RowPacker packer(source, options.context, 0);
  Trainer trainer(options, start_of(options, biases));
  std::vector<PackedRow> rows;
  for (int step = 0; step < steps; ++step) {
    rows.clear();
    for (int i = 0; i < options.rows; ++i) rows.push_back(packer.next());
    trainer.step(rows);
  }
  Trained run;
  run.log_probabilities = trainer.log_probabilities(rows, &run.entropies);
  trainer.copy_state(run.state);
  return run;
}

// The tensors of an array whose bits differ.
std::string differing(const ParameterLayout& layout, const std::vector<float>& expected,
                      const std::vector<float>& found) {
  std::string names;
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    int64_t count = 0, first = -1;
    for (int64_t i = slot.offset; i < slot.offset + slot.count; ++i)
      if (std::bit_cast<uint32_t>(expected[i]) != std::bit_cast<uint32_t>(found[i]))
        ++count, first = first < 0 ? i - slot.offset : first;
    if (count > 0)
      names += fmt::format("\n  {}: {} of {} elements, first {}", slot.tensor.name, count,
                           slot.count, first);
  }
  return names;
}

void expect_the_cpus(const TrainerOptions& options, const Trained& expected, const Trained& found) {
  const ParameterLayout layout(options.model.spec);
  // The first moments of the last step are its gradients, nearly.
  EXPECT_EQ(differing(layout, expected.state.first, found.state.first), "");
  EXPECT_EQ(differing(layout, expected.state.master, found.state.master), "");
  EXPECT_EQ(differing(layout, expected.state.second, found.state.second), "");
  EXPECT_TRUE(same_bits(std::span(expected.log_probabilities), std::span(found.log_probabilities)));
  EXPECT_TRUE(same_bits(std::span(expected.entropies), std::span(found.entropies)));
}

std::vector<TinyModel> all_models() {
  std::vector<TinyModel> models = tiny_models();
  for (const TinyModel& model : tiny_models_of_other_norms())
    if (model.spec.norm == NormKind::rms) models.push_back(model);  // no trainer writes the others
  for (const TinyModel& model : tiny_models_with_states()) models.push_back(model);
  for (const TinyModel& model : tiny_models_of_experts()) models.push_back(model);
  // Whole tiles of products, of experts, and of heads of every width.
  DecoderSpec experts = tiny_spec("qwen2_moe");
  experts.hidden = 192;
  experts.vocab = 300;
  experts.set_layers(
      {.parts = {AttentionSpec{}, ExpertsSpec{.routing = {.experts = 16,
                                                          .chosen = 4,
                                                          .score = ExpertScore::sigmoid,
                                                          .groups = 4,
                                                          .chosen_groups = 2,
                                                          .renormalised = true},
                                              .width = 160,
                                              .shared_width = 352,
                                              .shared_gate = true}}});
  models.push_back({"wide_experts", experts});
  for (const int head_dim : {64, 96, 128, 256}) {
    DecoderSpec wide = tiny_spec("qwen3");
    wide.qk_norm = true;
    wide.hidden = 192;
    wide.head_dim = head_dim;
    wide.vocab = 300;
    wide.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = 416}}});
    wide.layer_specs[0].attention()->window = 70;
    models.push_back({head_dim == 64    ? "heads_64"
                      : head_dim == 96  ? "heads_96"
                      : head_dim == 128 ? "heads_128"
                                        : "heads_256",
                      wide});
  }
  return models;
}

class TrainingOnGpu : public CudaTest, public ::testing::WithParamInterface<TinyModel> {};

TEST_P(TrainingOnGpu, gives_the_weights_of_a_cpu) {
  const TrainerOptions options = options_of(GetParam().spec, 160);
  expect_the_cpus(options, train(options, "cpu"), train(options, "cuda"));
}

// Few rows: what a CPU does in the order of tensor cores takes its time. States move at boundaries.
TEST_P(TrainingOnGpu, gives_the_weights_of_a_cpu_in_order_hopper) {
  TrainerOptions options = options_of(GetParam().spec, has_states(GetParam().spec) ? 160 : 64);
  options.order = Order::hopper;
  options.threads = 0;
  expect_the_cpus(options, train(options, "cpu", 1), train(options, "cuda", 1));
}

INSTANTIATE_TEST_SUITE_P(models, TrainingOnGpu, ::testing::ValuesIn(all_models()),
                         [](const auto& info) { return std::string(info.param.name); });

class TrainerOnGpu : public CudaTest {};

// Each has a GPU of its own, or they share one.
TEST_F(TrainerOnGpu, has_bits_that_do_not_depend_on_ranks) {
  TrainerOptions options = options_of(tiny_models()[3].spec);
  for (const Order order : {Order::portable, Order::hopper}) {
    options.order = order;
    options.ranks = 1;
    const Trained expected = train(options, "cpu", 2);
    for (const int ranks : {2, 4}) {
      options.ranks = ranks;
      expect_the_cpus(options, expected, train(options, "cuda", 2));
    }
    TrainerOptions other = options;
    other.ranks = 2;
    other.groups = 2;  // another tree
    const Trained of_two = train(other, "cuda", 2);
    EXPECT_FALSE(same_bits(std::span(expected.state.first), std::span(of_two.state.first)));
  }
}

TEST_F(TrainerOnGpu, learns_the_rows_that_answers_were_drawn_from) {
  TrainerOptions options = options_of(tiny_models()[0].spec);
  const Trained raw = train(options, "cpu", 1);
  options.sampled.temperature = 0.7;
  options.sampled.top_p = 0.9;
  const Trained expected = train(options, "cpu", 1);
  expect_the_cpus(options, expected, train(options, "cuda", 1));
  EXPECT_FALSE(same_bits(std::span(raw.state.first), std::span(expected.state.first)));
}

TEST_F(TrainerOnGpu, learns_from_a_teacher_as_on_a_cpu) {
  TrainerOptions options = options_of(tiny_models()[0].spec);
  const Trainer teacher(options, 2);
  for (const Order order : {Order::portable, Order::hopper}) {
    options.order = order;
    options.teacher = {};
    const Trained alone = train(options, "cpu", 1);
    options.teacher = {options.model, {std::shared_ptr<void>(), &teacher.weights()}, 0.5f};
    const Trained expected = train(options, "cpu", 1);
    expect_the_cpus(options, expected, train(options, "cuda", 1));
    EXPECT_FALSE(same_bits(std::span(alone.state.first), std::span(expected.state.first)));
  }
}

// Batches, recomputation and exits: how the rows are cut does not show.
TEST_F(TrainerOnGpu, has_bits_that_do_not_depend_on_batches) {
  TrainerOptions options = options_of(tiny_models()[3].spec);
  options.exits = {{1, 0.3f}};
  for (const Order order : {Order::portable, Order::hopper}) {
    options.order = order;
    const Trained expected = train(options, "cpu", 1);
    for (const int batch_rows : {1, 2})
      for (const bool recompute : {false, true}) {
        options.batch_rows = batch_rows;
        options.recompute = recompute;
        expect_the_cpus(options, expected, train(options, "cuda", 1));
      }
  }
}

// Biases of choices choose and stay, beside the loss that balances experts.
TEST_F(TrainerOnGpu, chooses_experts_by_their_biases) {
  const DecoderSpec spec = tiny_models_of_experts()[1].spec;
  TrainerOptions options = options_of(spec);
  options.balance = 0.05;
  const Trained expected = train(options, "cpu"), found = train(options, "cuda");
  expect_the_cpus(options, expected, found);
  const TrainingState start = start_of(options, 0.125f);
  const int64_t at = ParameterLayout(spec).offset(TensorRole::choice_bias, 1);
  for (int e = 0; e < spec.layer(1).experts()->routing.experts; ++e)
    EXPECT_EQ(found.state.master[static_cast<size_t>(at + e)],
              start.master[static_cast<size_t>(at + e)]);
  const ParameterLayout layout(spec);
  EXPECT_NE(differing(layout, train(options, "cpu", 2, 0).state.first, found.state.first), "");
  options.balance = 0;
  EXPECT_NE(differing(layout, train(options, "cpu").state.first, found.state.first), "");
}

// The foil: another group count is another sum.
TEST_F(TrainerOnGpu, shows_another_tree) {
  TrainerOptions options = options_of(tiny_models()[3].spec);
  const Trained expected = train(options, "cpu");
  options.groups = 2;
  const Trained found = train(options, "cuda");
  EXPECT_NE(differing(ParameterLayout(options.model.spec), expected.state.first, found.state.first),
            "");
}

}  // namespace
}  // namespace invar
