// What training depends on and what it does not: the digest of the weights after some steps.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "../weights/blocks_source.h"
#include "../weights/model_files.h"
#include "base/error.h"
#include "base/sha256.h"
#include "kernels/select.h"
#include "model/families/families.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/stored_places.h"
#include "model/families/tensors.h"
#include "model/families/trained_source.h"
#include "train/row_packer.h"
#include "training_case.h"
#include "weights/weights_digest.h"

namespace invar {
namespace {

// Documents of random length; later tokens follow from earlier ones, so that there is something to
// learn.
class Numbers : public DocumentSource {
 public:
  explicit Numbers(int vocab, int most = 29) : vocab_(vocab), most_(most) {}
  Document document(int64_t index) override {
    std::mt19937 random(static_cast<uint32_t>(index));
    Document d;
    int32_t token = static_cast<int32_t>(random() % vocab_);
    for (int i = static_cast<int>(random() % (most_ - 1)) + 2; i > 0; --i) {
      d.tokens.push_back(token);
      d.wanted.push_back(random() % 8 != 0);
      token = (token * 3 + 1) % vocab_;
    }
    return d;
  }

 private:
  int vocab_, most_;
};

// Layers with states get a context that crosses boundaries.
TrainerOptions tiny_options(const DecoderSpec& spec) {
  TrainerOptions options;
  options.model.spec = spec;
  options.context = has_states(spec) ? 160 : 32;
  options.rows = 8;
  options.groups = 4;
  options.batch_rows = 2;
  options.threads = 1;
  options.optimizer = {.rate = 1e-2, .warmup = 2, .steps = 20};
  if (spec.mtp_layers > 0) options.mtp_weight = 0.5f;
  return options;
}

std::vector<PackedRow> next_rows(RowPacker& packer, int count) {
  std::vector<PackedRow> rows;
  for (int i = 0; i < count; ++i) rows.push_back(packer.next());
  return rows;
}

// Of everything that a run goes on from.
std::string digest(const Trainer& trainer) {
  TrainingState state;
  trainer.copy_state(state);
  Sha256 sha;
  for (const auto* array : {&state.master, &state.first, &state.second})
    sha.update(std::as_bytes(std::span(*array)));
  return to_hex(sha.finish());
}

// The digest after some steps.
std::string train(const TrainerOptions& options, int steps, uint64_t seed = 1) {
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  Trainer trainer(options, seed);
  for (int i = 0; i < steps; ++i) trainer.step(next_rows(packer, options.rows));
  return digest(trainer);
}

class Training : public testing::TestWithParam<TinyModel> {
 protected:
  TrainerOptions options() const { return tiny_options(GetParam().spec); }
};

constexpr int kSteps = 2;

TEST_P(Training, SchedulesDoNotShow) {
  const std::string expected = train(options(), kSteps);
  const auto expect_same = [&](const char* what, auto change) {
    TrainerOptions o = options();
    change(o);
    EXPECT_EQ(train(o, kSteps), expected) << what;
  };
  expect_same("2 threads", [](TrainerOptions& o) { o.threads = 2; });
  expect_same("3 threads", [](TrainerOptions& o) { o.threads = 3; });
  expect_same("1 row in a batch", [](TrainerOptions& o) { o.batch_rows = 1; });
  expect_same("8 rows in a batch", [](TrainerOptions& o) { o.batch_rows = 8; });
  expect_same("recomputation", [](TrainerOptions& o) { o.recompute = true; });
  expect_same("2 ranks", [](TrainerOptions& o) { o.ranks = 2; });
  expect_same("4 ranks", [](TrainerOptions& o) { o.ranks = 4; });
  for (const std::string& set : instruction_sets())
    if (is_supported(set))
      expect_same(set.c_str(), [&](TrainerOptions& o) { o.instruction_set = set; });
  expect_same("everything at once", [](TrainerOptions& o) {
    o.ranks = 2, o.batch_rows = 1, o.threads = 2, o.recompute = true;
    o.instruction_set = "scalar";
  });
}

// The same of a trainer for each rank, as where they are processes. `wrap` makes of a rank's group
// the one that it gets.
template <typename Wrap>
std::string train_apart(TrainerOptions options, int steps, Wrap wrap) {
  auto groups = make_inproc_groups(options.ranks);
  std::string found;
  std::vector<std::jthread> ranks;
  for (int r = 0; r < options.ranks; ++r)
    ranks.emplace_back([&, r] {
      const auto group = wrap(*groups[static_cast<size_t>(r)]);
      TrainerOptions own = options;
      own.group = group ? group.get() : groups[static_cast<size_t>(r)].get();
      Numbers source(own.model.spec.vocab, own.context - 3);
      RowPacker packer(source, own.context, 0);
      Trainer trainer(own, 1);
      for (int i = 0; i < steps; ++i) trainer.step(next_rows(packer, own.rows));
      trainer.read_together([&] { found = digest(trainer); });
    });
  ranks.clear();
  return found;
}

// Ranks that hold parts of weights, gradients and state; layers' gradients in one place in turn
// (2 rows in a batch) and not (1 row).
TEST_P(Training, RanksDoNotShow) {
  TrainerOptions options = this->options();
  options.groups = 8;
  options.rows = 16;
  options.exits = {{1, 0.5f}};
  const std::string expected = train(options, kSteps);
  for (const int ranks : {2, 4, 8})
    for (const int batch_rows : {1, 2})
      for (const int threads : {1, 2}) {
        TrainerOptions o = options;
        o.ranks = ranks, o.batch_rows = batch_rows, o.threads = threads;
        o.recompute = ranks == 4;
        EXPECT_EQ(train(o, kSteps), expected) << ranks << " ranks, " << batch_rows << " rows";
      }
  options.ranks = 4;
  EXPECT_EQ(train_apart(options, kSteps, [](Group&) { return std::unique_ptr<Group>(); }),
            expected);
  // The control: a chain over the ranks in place of the tree.
  EXPECT_NE(train_apart(options, kSteps, [](Group& group) { return make_chain_group(group); }),
            expected);
}

// What ranks compute together besides steps.
TEST_P(Training, RanksSayTheSameOfRows) {
  TrainerOptions options = this->options();
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  const std::vector<PackedRow> rows = next_rows(packer, 7);
  Trainer alone(options, 1);
  options.ranks = 4;
  Trainer together(options, 1);
  std::vector<float> entropies, own_entropies;
  const std::vector<float> expected = alone.log_probabilities(rows, &entropies);
  EXPECT_EQ(together.log_probabilities(rows, &own_entropies), expected);
  EXPECT_EQ(own_entropies, entropies);
  EXPECT_EQ(together.routed_experts(rows), alone.routed_experts(rows));
  if (options.model.spec.mtp_layers > 0) {
    EXPECT_EQ(together.score_mtp(rows).loss, alone.score_mtp(rows).loss);
  }
  together.step(next_rows(packer, options.rows));
  EXPECT_NE(together.log_probabilities(rows), expected);  // the control
}

// What does show, so that the tests above can fail.
TEST_P(Training, OptionsShow) {
  const std::string expected = train(options(), kSteps);
  const auto expect_other = [&](const char* what, auto change) {
    TrainerOptions o = options();
    change(o);
    EXPECT_NE(train(o, kSteps), expected) << what;
  };
  expect_other("2 groups", [](TrainerOptions& o) { o.groups = 2; });
  expect_other("8 groups", [](TrainerOptions& o) { o.groups = 8; });
  expect_other("a rate one ulp larger", [](TrainerOptions& o) { o.optimizer.rate *= 1 + 1e-7; });
  expect_other("no clipping", [](TrainerOptions& o) { o.optimizer.clip = 0; });
  if (GetParam().spec.mtp_layers > 0) {
    expect_other("a module that counts less", [](TrainerOptions& o) { o.mtp_weight = 0.25f; });
    expect_other("a module that reads its own", [](TrainerOptions& o) { o.mtp_own_every = 2; });
  }
  EXPECT_NE(train(options(), kSteps, 2), expected) << "another seed";
}

TEST_P(Training, ResumesAtEveryStep) {
  constexpr int kAll = 3;
  const std::string expected = train(options(), kAll);
  Numbers source(options().model.spec.vocab, options().context - 3);
  TrainingState state;
  RowPacker::State data;
  {
    RowPacker packer(source, options().context, 0);
    Trainer trainer(options(), 1);
    trainer.copy_state(state);
    data = packer.state();
  }
  for (int i = 0; i < kAll; ++i) {  // every step in a new trainer
    RowPacker packer(source, options().context, 0);
    packer.restore(data);
    Trainer trainer(options(), state);
    trainer.step(next_rows(packer, options().rows));
    trainer.copy_state(state);
    data = packer.state();
    if (i + 1 == kAll) {
      EXPECT_EQ(digest(trainer), expected);
    }
  }
  // A state that differs in one bit goes another way.
  const auto one_step_from = [&](const TrainingState& from) {
    RowPacker packer(source, options().context, 0);
    packer.restore(data);
    Trainer trainer(options(), from);
    trainer.step(next_rows(packer, options().rows));
    return digest(trainer);
  };
  const std::string right = one_step_from(state);
  float& bit = state.master[ParameterLayout(options().model.spec).offset(TensorRole::final_norm)];
  bit = std::bit_cast<float>(std::bit_cast<uint32_t>(bit) ^ 0x10000);
  EXPECT_NE(one_step_from(state), right);
}

// ---- Other losses

std::vector<float> first_moments(const TrainerOptions& options, const TrainingState& from) {
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  Trainer trainer(options, from);
  trainer.step(next_rows(packer, options.rows));
  TrainingState state;
  trainer.copy_state(state);
  return state.first;
}

TrainingState begin(const TrainerOptions& options) {
  TrainingState state;
  Trainer(options, 1).copy_state(state);
  return state;
}

// After one step without clipping the first moments are the gradient: what an exit after one layer
// adds is the gradient of the model that has this layer only.
TEST(ExitLoss, IsTheLossOfTheModelThatEndsThere) {
  constexpr float kWeight = 0.5f;
  for (const TinyModel& model : {tiny_models()[0], tiny_models()[3]}) {
    TrainerOptions plain = tiny_options(model.spec);
    plain.optimizer.clip = 0;
    TrainerOptions with_exit = plain, cut = plain;
    with_exit.exits = {{1, kWeight}};
    cut.model.spec.layers = 1;
    cut.model.spec.layer_specs.resize(1);
    const TrainingState state = begin(plain);
    TrainingState cut_state = begin(cut);
    const ParameterLayout layout(plain.model.spec), cut_layout(cut.model.spec);
    const auto place = [&](const ParameterLayout::Slot& slot) {
      return layout.offset(slot.tensor.role, slot.tensor.layer);
    };
    for (const ParameterLayout::Slot& slot : cut_layout.slots())
      std::copy_n(&state.master[place(slot)], slot.count, &cut_state.master[slot.offset]);
    const std::vector<float> without = first_moments(plain, state);
    const std::vector<float> with = first_moments(with_exit, state);
    const std::vector<float> expected = first_moments(cut, cut_state);
    for (const ParameterLayout::Slot& slot : cut_layout.slots()) {
      double error = 0, size = 0;
      for (int64_t i = 0; i < slot.count; ++i) {
        const double added = double{with[place(slot) + i]} - without[place(slot) + i];
        const double wanted = double{kWeight} * expected[slot.offset + i];
        error += (added - wanted) * (added - wanted);
        size += wanted * wanted;
      }
      EXPECT_LT(std::sqrt(error / size), 0.03) << slot.tensor.name;
      EXPECT_GT(size, 0) << slot.tensor.name;
    }
    // The layer behind the exit learns nothing from it.
    const int64_t behind = layout.offset(TensorRole::down, 1);
    EXPECT_EQ(with[behind], without[behind]);
  }
}

// To learn nothing but the probabilities that one has already is to learn nothing.
TEST(Teacher, WithTheSameWeightsTeachesNothing) {
  TrainerOptions options = tiny_options(tiny_models()[3].spec);
  const Trainer same(options, 1), other(options, 2);
  const TrainingState state = begin(options);
  const auto largest_moment = [&](const Trainer& teacher, float share) {
    TrainerOptions o = options;
    o.teacher = {options.model, {std::shared_ptr<void>(), &teacher.weights()}, share};
    float largest = 0;
    for (const float m : first_moments(o, state)) largest = std::max(largest, std::fabs(m));
    return largest;
  };
  EXPECT_EQ(largest_moment(same, 1.0f), 0.0f);
  EXPECT_GT(largest_moment(same, 0.5f), 0.0f);
  EXPECT_GT(largest_moment(other, 1.0f), 0.0f);
}

TEST(OtherLosses, SchedulesDoNotShow) {
  TrainerOptions options = tiny_options(tiny_models()[3].spec);
  const Trainer teacher(options, 2);
  options.exits = {{1, 0.5f}};
  options.teacher = {options.model, {std::shared_ptr<void>(), &teacher.weights()}, 0.5f};
  const std::string expected = train(options, kSteps);
  const auto digest_with = [&](auto change) {
    TrainerOptions o = options;
    change(o);
    return train(o, kSteps);
  };
  EXPECT_EQ(digest_with([](TrainerOptions& o) { o.threads = 2; }), expected);
  EXPECT_EQ(digest_with([](TrainerOptions& o) { o.batch_rows = 1; }), expected);
  EXPECT_EQ(digest_with([](TrainerOptions& o) { o.ranks = 2; }), expected);
  EXPECT_EQ(digest_with([](TrainerOptions& o) { o.ranks = 4, o.recompute = true; }), expected);
  EXPECT_EQ(digest_with([](TrainerOptions& o) { o.recompute = true; }), expected);
  EXPECT_EQ(digest_with([](TrainerOptions& o) { o.instruction_set = "scalar"; }), expected);
  EXPECT_NE(digest_with([](TrainerOptions& o) { o.exits[0].weight = 0.25f; }), expected);
  EXPECT_NE(digest_with([](TrainerOptions& o) { o.teacher.share = 0.25f; }), expected);
}

TEST(Trainer, Learns) {
  TrainerOptions options = tiny_options(tiny_models()[3].spec);
  options.optimizer.steps = 40;
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  Trainer trainer(options, 1);
  const double first = trainer.step(next_rows(packer, options.rows)).loss;
  double last = 0;
  while (trainer.steps_done() < 40) last = trainer.step(next_rows(packer, options.rows)).loss;
  std::printf("loss %.3f, then %.3f\n", first, last);
  EXPECT_LT(last, 0.2 * first);
}

// One token further follows from what the module is given as surely as the next one does.
void expect_module_learns(const DecoderSpec& spec) {
  TrainerOptions options = tiny_options(spec);
  options.optimizer.steps = 40;
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  Trainer trainer(options, 1);
  const std::vector<PackedRow> rows = next_rows(packer, 11);
  const MtpScore before = trainer.score_mtp(rows);
  StepReport report;
  while (trainer.steps_done() < 40) report = trainer.step(next_rows(packer, options.rows));
  const MtpScore after = trainer.score_mtp(rows);
  const auto mean = [](const MtpScore& s) { return s.loss / static_cast<double>(s.count); };
  std::printf("loss %.3f, then %.3f (%.3f in the last step); %ld of %ld agree, then %ld\n",
              mean(before), mean(after), report.mtp_loss, long(before.agreed), long(before.count),
              long(after.agreed));
  EXPECT_GT(after.count, 200);
  EXPECT_LT(mean(after), 0.4 * mean(before));
  EXPECT_NEAR(report.mtp_loss, mean(after), 0.5);
  EXPECT_GT(after.agreed, after.count * 3 / 4);
  EXPECT_LT(before.agreed, before.count / 4);
}

TEST(Mtp, LearnsAndAgrees) {
  expect_module_learns(tiny_models()[5].spec);
}

// A module some of whose rows go on from what it left.
TEST(Mtp, SchedulesDoNotShowInItsOwnRows) {
  for (const DecoderSpec& spec : {tiny_models()[5].spec, tiny_models_with_states()[6].spec}) {
    TrainerOptions options = tiny_options(spec);
    options.mtp_own_every = 3;
    const std::string expected = train(options, kSteps);
    const auto digest_with = [&](auto change) {
      TrainerOptions o = options;
      change(o);
      return train(o, kSteps);
    };
    EXPECT_EQ(digest_with([](TrainerOptions& o) { o.threads = 2; }), expected);
    EXPECT_EQ(digest_with([](TrainerOptions& o) { o.batch_rows = 1; }), expected);
    EXPECT_EQ(digest_with([](TrainerOptions& o) { o.ranks = 4, o.recompute = true; }), expected);
    EXPECT_EQ(digest_with([](TrainerOptions& o) { o.instruction_set = "scalar"; }), expected);
    EXPECT_NE(digest_with([](TrainerOptions& o) { o.mtp_own_every = 2; }), expected);
    EXPECT_NE(digest_with([](TrainerOptions& o) { o.mtp_own_every = 0; }), expected);
  }
}

TEST(Mtp, LearnsBesideStates) {
  expect_module_learns(tiny_models_with_states()[6].spec);
}

// The module never predicts the next sequence's first tokens from the end of one.
TEST(Mtp, SequencesOfAPackedRowAreAsAlone) {
  const TrainerOptions options = tiny_options(tiny_models()[4].spec);
  Numbers source(options.model.spec.vocab, options.context - 3);
  const auto row_of = [&](std::vector<int> sizes) {
    PackedRow row;
    for (const int size : sizes) {
      Document document{.wanted = std::vector<uint8_t>(static_cast<size_t>(size), 1)};
      for (int i = 0; i < size; ++i) document.tokens.push_back((size * 7 + i * i) % 53);
      append_sequence(row, document);
    }
    fill_row(row, options.context, 0);
    return row;
  };
  Trainer trainer(options, 1);
  const std::vector<PackedRow> packed(8, row_of({9, 13, 6}));
  std::vector<PackedRow> alone;
  for (const int size : {9, 13, 6}) alone.insert(alone.end(), 8, row_of({size}));
  const MtpScore together = trainer.score_mtp(packed), apart = trainer.score_mtp(alone);
  EXPECT_EQ(together.count, 8 * (7 + 11 + 4));
  EXPECT_EQ(together.count, apart.count);
  EXPECT_EQ(together.agreed, apart.agreed);
  EXPECT_NEAR(together.loss, apart.loss, 1e-9 * apart.loss);
  const double mean = together.loss / static_cast<double>(together.count);
  EXPECT_NEAR(trainer.step(packed).mtp_loss, mean, 1e-6);
}

// Norms and biases do not decay, matrices do.
TEST(Trainer, DecayIsOfMatricesAlone) {
  const auto trained = [](float decay) {
    TrainerOptions options = tiny_options(tiny_models()[3].spec);
    options.optimizer.decay = decay;
    options.optimizer.warmup = 0;
    Numbers source(options.model.spec.vocab, options.context - 3);
    RowPacker packer(source, options.context, 0);
    auto trainer = std::make_unique<Trainer>(options, 1);
    trainer->step(next_rows(packer, options.rows));  // behind it gradients differ as well
    ThreadPool pool(1);
    std::map<std::string, std::string> digests;
    for (const std::string& name : trainer->weights().names())
      digests[name] = to_hex(weights_digest(trainer->weights(), {name}, pool));
    return digests;
  };
  const auto plain = trained(0), decayed = trained(0.5F);
  ASSERT_GT(plain.size(), 10U);
  for (const auto& [name, digest] : plain) {
    const bool is_norm = name.find("norm") != name.npos;
    EXPECT_EQ(digest == decayed.at(name), is_norm) << name;
  }
}

TEST(Trainer, NamesStepAndTensorOfGradientsThatAreNotFinite) {
  const TrainerOptions options = tiny_options(tiny_models()[3].spec);
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  TrainingState state;
  {
    Trainer trainer(options, 1);
    trainer.step(next_rows(packer, options.rows));
    trainer.copy_state(state);
  }
  // Weights of 1e30 behind a norm of 1e-30: the forward is what it was, the norm's gradient is not.
  const ParameterLayout layout(options.model.spec);
  const auto scale = [&](TensorRole role, int count, float factor) {
    for (int i = 0; i < count; ++i) state.master[layout.offset(role, 1) + i] *= factor;
  };
  scale(TensorRole::post_norm, 64, 1e-30f);
  scale(TensorRole::gate, 96 * 64, 1e30f);
  scale(TensorRole::up, 96 * 64, 1e30f);
  Trainer trainer(options, state);
  const std::string before = digest(trainer);
  try {
    trainer.step(next_rows(packer, options.rows));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("step 2: the gradient of tensor \"model.layers.1.post_"),
        std::string::npos)
        << error.what();
  }
  EXPECT_EQ(digest(trainer), before);
  EXPECT_EQ(trainer.steps_done(), 1);
}

TEST(Trainer, RefusesOptionsThatDoNotFit) {
  const auto refuses = [](auto change) {
    TrainerOptions o = tiny_options(tiny_models()[0].spec);
    change(o);
    EXPECT_THROW(Trainer(o, 1), UsageError);
  };
  refuses([](TrainerOptions& o) { o.context = 40; });
  refuses([](TrainerOptions& o) { o.context = 512; });
  refuses([](TrainerOptions& o) { o.groups = 3; });
  refuses([](TrainerOptions& o) { o.rows = 6; });
  refuses([](TrainerOptions& o) { o.ranks = 8; });
  refuses([](TrainerOptions& o) { o.batch_rows = 0; });
  refuses([](TrainerOptions& o) { o.optimizer.warmup = 20; });
  refuses([](TrainerOptions& o) { o.exits = {{2, 0.5f}}; });
  refuses([](TrainerOptions& o) { o.exits = {{1, 0.5f}, {1, 0.5f}}; });
}

TEST(RowPacker, KeepsEveryTokenOnceAndGoesOnFromItsState) {
  Numbers source(50);
  RowPacker packer(source, 64, 49);
  std::vector<PackedRow> rows = next_rows(packer, 10);
  const RowPacker::State state = packer.state();
  size_t used = 0, first = 0;
  for (const PackedRow& row : rows) {
    ASSERT_EQ(row.tokens.size(), 64u);
    ASSERT_EQ(row.begins[0], 0);
    for (const float w : row.weights) used += w != 0;
    for (size_t i = 0; i + 1 < row.tokens.size(); ++i)
      if (row.weights[i] != 0) {
        EXPECT_EQ(row.targets[i], row.tokens[i + 1]);
      }
    first += row.begins.size();
  }
  EXPECT_GT(used, 10 * 64 * 3 / 4);
  EXPECT_GT(first, 15u);
  const std::vector<PackedRow> expected = next_rows(packer, 5);
  RowPacker again(source, 64, 49);
  again.restore(state);
  for (const PackedRow& row : expected) EXPECT_EQ(again.next().tokens, row.tokens);
  EXPECT_EQ(again.state(), packer.state());
}

// At temperature 1/2 all but the head learns what it learns at 1 under a head of twice the weights:
// powers of two change no bit.
TEST(SampledTraining, ATemperatureIsAHeadOfOtherWeights) {
  TrainerOptions options = tiny_options(tiny_models()[0].spec);
  ASSERT_FALSE(options.model.spec.tied_head);
  options.optimizer.clip = 0;
  const ParameterLayout layout(options.model.spec);
  const int64_t head = layout.offset(TensorRole::head);
  const int64_t size = int64_t{options.model.spec.vocab} * options.model.spec.hidden;
  TrainingState start, scaled;
  Trainer(options, 1).copy_state(start);
  scaled = start;
  for (int64_t i = head; i < head + size; ++i) scaled.master[i] *= 2;
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  const std::vector<PackedRow> rows = next_rows(packer, options.rows);
  const auto learned = [&](double temperature, const TrainingState& from,
                           std::vector<float>& scores) {
    options.sampled.temperature = temperature;
    Trainer trainer(options, from);
    scores = trainer.log_probabilities(rows);
    for (size_t i = 0; i < scores.size(); ++i)  // rows without a weight stay as they are
      if (rows[i / options.context].weights[i % options.context] == 0) scores[i] = 0;
    trainer.step(rows);
    TrainingState state;
    trainer.copy_state(state);
    std::fill_n(state.master.begin() + head, size, 0.0f);
    return state.master;
  };
  std::vector<float> half, twice, plain;
  const std::vector<float> expected = learned(1, scaled, twice);
  EXPECT_EQ(learned(0.5, start, half), expected);
  EXPECT_EQ(half, twice);
  EXPECT_NE(learned(1, start, plain), expected) << "the control: the model's own distribution";
  EXPECT_NE(plain, twice);
}

// Tokens that top-k leaves out have no part in the sum, and no gradient goes to them.
TEST(SampledTraining, WhatIsLeftOutHasNoPart) {
  TrainerOptions options = tiny_options(tiny_models()[0].spec);
  options.sampled.top_k = 1;
  Numbers source(options.model.spec.vocab, options.context - 3);
  RowPacker packer(source, options.context, 0);
  std::vector<PackedRow> rows = next_rows(packer, options.rows);
  Trainer trainer(options, 1);
  const std::vector<float> scores = trainer.log_probabilities(rows);
  size_t certain = 0, excluded = 0, at = 0;
  for (const PackedRow& row : rows)
    for (const float weight : row.weights) {
      const float score = scores[at++];
      if (weight == 0) continue;
      certain += score == 0;
      excluded += score == -std::numeric_limits<float>::infinity();
      EXPECT_TRUE(score == 0 || std::isinf(score)) << score;
    }
  EXPECT_GT(excluded, 0u);
  options.sampled.temperature = 0;
  EXPECT_THROW(Trainer(options, 1), UsageError);
  options.sampled.temperature = 1;
  options.exits = {{1, 0.5f}};
  EXPECT_THROW(Trainer(options, 1), UsageError);
}

INSTANTIATE_TEST_SUITE_P(Families, Training, testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return std::string(info.param.name); });

const TinyModel kOthers[] = {tiny_models_of_other_norms()[0], tiny_models_of_other_norms()[1]};
INSTANTIATE_TEST_SUITE_P(OtherNorms, Training, testing::ValuesIn(kOthers),
                         [](const auto& info) { return std::string(info.param.name); });

// With norms whose gradients are long enough to be clipped.
std::vector<TinyModel> models_with_states() {
  std::vector<TinyModel> models = tiny_models_with_states();
  models[3].spec.norm_eps = 1e-5f;
  return {models[0], models[1], models[3], models[6]};
}
INSTANTIATE_TEST_SUITE_P(States, Training, testing::ValuesIn(models_with_states()),
                         [](const auto& info) { return std::string(info.param.name); });

// Gemma's norms: 1 + w is what multiplies, w what is trained and written.
TEST(Training, KeepsWeightsAsTheFamilyStoresThem) {
  const DecoderSpec spec = tiny_models_of_other_norms()[0].spec;
  Trainer trainer(tiny_options(spec), 5);
  Numbers source(spec.vocab);
  RowPacker packer(source, 32, spec.vocab);
  for (int i = 0; i < 3; ++i) trainer.step(next_rows(packer, 8));
  const std::string name = "model.norm.weight";
  std::vector<float> stored(static_cast<size_t>(spec.hidden)), own(stored.size());
  trainer.weights().read(name, 0, spec.hidden, DType::f32, stored.data());
  decoder_tensors(spec, trainer.weights())->read(name, 0, spec.hidden, DType::f32, own.data());
  EXPECT_TRUE(std::ranges::any_of(stored, [](float w) { return w != 0; }));
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_LT(std::fabs(stored[i]), 0.2f);
    EXPECT_EQ(own[i], 1.0f + stored[i]);
  }
}

// A checkpoint of the family, taken apart again, is what was trained.
TEST(Training, WritesLayersWithStatesAsTheFamilyStoresThem) {
  const char* const fused[] = {
      "model.layers.0.conv.in_proj.weight",       "model.layers.0.linear_attn.in_proj_qkv.weight",
      "model.layers.1.linear_attn.conv1d.weight", "model.layers.1.self_attn.k_conv1d.weight",
      "model.layers.0.mamba.in_proj.weight",      "backbone.layers.0.mixer.in_proj.weight",
      "mtp.layers.0.self_attn.q_proj.weight"};
  const char* const* name = fused;
  for (const TinyModel& model : tiny_models_with_states()) {
    const TrainerOptions options = tiny_options(model.spec);
    Numbers source(model.spec.vocab, options.context - 3);
    RowPacker packer(source, options.context, 0);
    Trainer trainer(options, 5);
    for (int i = 0; i < 2; ++i) trainer.step(next_rows(packer, options.rows));
    const auto stored = stored_form(model.spec, trainer.weights());
    EXPECT_TRUE(stored->has(*name++)) << model.name;
    check_tensors(model.spec, *decoder_tensors(model.spec, *stored));
    const std::vector<PackedRow> rows = next_rows(packer, 3);
    Trainer again(options, starting_state(model.spec, *stored));
    EXPECT_EQ(again.log_probabilities(rows), trainer.log_probabilities(rows)) << model.name;
    trainer.step(next_rows(packer, options.rows));
    EXPECT_NE(again.log_probabilities(rows), trainer.log_probabilities(rows)) << model.name;
  }
}

bool is_trainable(const DecoderSpec& spec) {
  try {
    expect_trainable(spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A module of multi-token prediction is written and read as the family's modules are, and announced
// in config.json where that is how.
TEST(Mtp, IsWrittenAsTheFamilyStoresIt) {
  int families = 0;
  for (const std::string& family : family_names()) {
    DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family,
                                                           .hidden = 64,
                                                           .layers = 4,
                                                           .heads = 4,
                                                           .kv_heads = 2,
                                                           .head_dim = 16,
                                                           .ffn = 96,
                                                           .vocab = 61});
    spec.mtp_layers = 1;
    if (!is_trainable(spec)) continue;
    SCOPED_TRACE(family);
    ++families;
    const TrainerOptions options = tiny_options(spec);
    Numbers source(spec.vocab, options.context - 3);
    RowPacker packer(source, options.context, 0);
    Trainer trainer(options, 5);
    trainer.step(next_rows(packer, options.rows));
    const auto stored = stores_otherwise(spec) ? stored_form(spec, trainer.weights()) : nullptr;
    const TensorSource& written = stored ? *stored : trainer.weights();
    const DecoderSpec read =
        parse_model_config(config_json({.spec = spec}), nullptr, "config.json").spec;
    const auto own = stored ? decoder_tensors(spec, stored_form(spec, trainer.weights())) : nullptr;
    EXPECT_EQ(spec_of_stored(read, own ? *own : written).mtp_layers, 1);
    const std::vector<PackedRow> rows = next_rows(packer, 3);
    Trainer again(options, starting_state(spec, written));
    EXPECT_EQ(again.score_mtp(rows).loss, trainer.score_mtp(rows).loss);
  }
  EXPECT_EQ(families, 36);
}

// The same of every family that can be trained.
TEST(Training, WritesEveryFamilyAsItIsStored) {
  std::set<std::string> trained;
  for (const std::string& family : family_names()) {
    const DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family,
                                                                 .hidden = 64,
                                                                 .layers = 3,
                                                                 .heads = 4,
                                                                 .kv_heads = 2,
                                                                 .head_dim = 16,
                                                                 .ffn = 96,
                                                                 .vocab = 61});
    if (!is_trainable(spec)) continue;
    trained.insert(family);
    SCOPED_TRACE(family);
    const TrainerOptions options = tiny_options(spec);
    Numbers source(spec.vocab, options.context - 3);
    RowPacker packer(source, options.context, 0);
    Trainer trainer(options, 5);
    for (int i = 0; i < 2; ++i) trainer.step(next_rows(packer, options.rows));
    const auto stored = stores_otherwise(spec) ? stored_form(spec, trainer.weights()) : nullptr;
    const TensorSource& written = stored ? *stored : trainer.weights();
    const std::vector<PackedRow> rows = next_rows(packer, 3);
    Trainer again(options, starting_state(spec, written));
    EXPECT_EQ(again.log_probabilities(rows), trainer.log_probabilities(rows));
    trainer.step(next_rows(packer, options.rows));
    EXPECT_NE(again.log_probabilities(rows), trainer.log_probabilities(rows));
  }
  // docs/models.md has their number.
  const std::set<std::string> expected = {"deepseek_v2",
                                          "deepseek_v3",
                                          "exaone4",
                                          "falcon",
                                          "gemma2",
                                          "gemma3_text",
                                          "glm4",
                                          "glm4_moe",
                                          "glm4_moe_lite",
                                          "granite",
                                          "hy_v3",
                                          "internlm3",
                                          "kimi_k2",
                                          "kimi_linear",
                                          "lfm2",
                                          "lfm2_moe",
                                          "llama",
                                          "minimax_m2",
                                          "ministral",
                                          "ministral3",
                                          "mistral",
                                          "mistral4",
                                          "mixtral",
                                          "nemotron_h",
                                          "olmo2",
                                          "olmo3",
                                          "olmo_hybrid",
                                          "olmoe",
                                          "phi3",
                                          "qwen2",
                                          "qwen2_moe",
                                          "qwen3",
                                          "qwen3_5_moe_text",
                                          "qwen3_5_text",
                                          "qwen3_moe",
                                          "qwen3_next",
                                          "qwen3_vl_moe_text",
                                          "seed_oss",
                                          "smollm3"};
  EXPECT_EQ(trained, expected);
}

TEST(Training, RefusesMixersBesideEachOther) {
  const auto trains = [](const char* family) {
    expect_trainable(override_spec(preset_spec("tiny"), {.family = family}));
  };
  expect_message(error_of([&] { trains("falcon_h1"); }),
                 "layer 0 of the model cannot be trained: its state space reads what attention "
                 "beside it reads, and the gradient of that is not implemented");
  trains("lfm2");
}

TEST(Training, RefusesLatentsThatHaveNoBackward) {
  const auto refuse = [](const char* family, int value, const std::string& why) {
    DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family});
    for (LayerSpec& layer : spec.layer_specs) layer.attention()->latent->value = value;
    expect_message(
        error_of([&] { expect_trainable(spec); }),
        "layer 0 of the model cannot be trained: " + why + ", whose gradient is not implemented");
  };
  refuse("deepseek_v32", 32, "an indexer chooses what its attention reads");
  refuse("deepseek_v3", 40, "its heads' outputs are no whole thirty-twos");
  expect_trainable(override_spec(preset_spec("tiny"), {.family = "deepseek_v3"}));
  TrainerOptions on_gpu = tiny_options(tiny_models_with_latents()[0].spec);
  on_gpu.device = "cuda";
  expect_message(error_of([&] { Trainer(on_gpu, 1); }),
                 "the trainer was asked for on cuda, which has no backward of latent attention");
}

TEST(Training, RefusesWeightsInBlocks) {
  DecoderSpec spec = tiny_models()[0].spec;
  spec.hidden = 64;
  spec.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = 96}}});
  const InBlocks stored(dummy_weights(spec, 1), {});
  expect_message(error_of([&] { starting_state(spec, stored); }),
                 "expected weights of bf16, f16 or f32 to train, found q8_0");
  starting_state(spec, InBlocks(dummy_weights(spec, 1), {.is_stored = false}));
}

}  // namespace
}  // namespace invar
