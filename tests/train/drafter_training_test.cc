// Drafters that learn behind a frozen target: their gradients are those of their losses, they
// learn, and what computes them does not show in their weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/sha256.h"
#include "kernels/select.h"
#include "model/families/make_model.h"
#include "train/drafter/drafter_trainer.h"
#include "train/drafter/unrolled_attention.h"
#include "train/packed_batch.h"

namespace invar {
namespace {

// Documents of random length; tokens follow from those before them.
class Numbers : public DocumentSource {
 public:
  explicit Numbers(int vocab) : vocab_(vocab) {}
  Document document(int64_t index) override {
    std::mt19937 random(static_cast<uint32_t>(index));
    Document d;
    int32_t token = static_cast<int32_t>(random() % vocab_);
    for (int i = static_cast<int>(random() % 28) + 2; i > 0; --i) {
      d.tokens.push_back(token);
      d.wanted.push_back(1);
      token = (token * 3 + 1) % vocab_;
    }
    return d;
  }

 private:
  int vocab_;
};

constexpr int kVocab = 96;

DecoderSpec target_spec() {
  DecoderSpec spec{.family = "llama",
                   .hidden = 64,
                   .layers = 3,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 16,
                   .vocab = kVocab,
                   .max_positions = 256,
                   .norm_eps = 1e-5f};
  spec.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = 72}}});
  return spec;
}

struct Case {
  const char* name;
  DrafterMethod method;
  int hidden;  // of EAGLE-3
};
constexpr Case kMedusa{"medusa", DrafterMethod::medusa, 0};
constexpr Case kEagle{"eagle3", DrafterMethod::eagle3, 32};
constexpr Case kEagleOfTargetsWidth{"eagle3_at_the_targets_width", DrafterMethod::eagle3, 64};

DrafterOptions options_of(const Case& of) {
  const DrafterMethod method = of.method;
  DrafterOptions options;
  options.target.spec = target_spec();
  options.weights = dummy_weights(options.target.spec, 1);
  options.threads = 1;
  DrafterRecipe& r = options.recipe;
  r.drafter = {.method = method, .levels = 3};
  r.context = 64;
  r.rows = 4;
  r.optimizer = {.rate = 1e-2, .warmup = 2, .steps = 60};
  if (method == DrafterMethod::medusa) return options;
  r.drafter.hidden = of.hidden, r.drafter.heads = 4, r.drafter.kv_heads = 2,
  r.drafter.head_dim = 16;
  r.drafter.ffn = 40, r.drafter.vocab = 64, r.drafter.features = {1, 2, 3};
  Numbers documents(kVocab);
  options.frequent = frequent_tokens(documents, 20, kVocab, r.drafter.vocab);
  return options;
}

std::vector<PackedRow> next_rows(RowPacker& packer, int count) {
  std::vector<PackedRow> rows;
  for (int i = 0; i < count; ++i) rows.push_back(packer.next());
  return rows;
}

std::string digest(const DrafterTrainer& trainer) {
  TrainingState state;
  trainer.copy_state(state);
  Sha256 sha;
  for (const auto* array : {&state.master, &state.first, &state.second})
    sha.update(std::as_bytes(std::span(*array)));
  return to_hex(sha.finish());
}

// Of everything that a run goes on from, after three steps.
std::string train(const DrafterOptions& options) {
  Numbers source(kVocab);
  RowPacker packer(source, options.recipe.context, 0);
  DrafterTrainer trainer(options);
  for (int i = 0; i < 3; ++i) trainer.step(next_rows(packer, options.recipe.rows));
  return digest(trainer);
}

class DrafterTraining : public testing::TestWithParam<Case> {};

TEST_P(DrafterTraining, SchedulesDoNotShow) {
  const std::string expected = train(options_of(GetParam()));
  const auto expect_same = [&](const std::string& what, auto change) {
    DrafterOptions o = options_of(GetParam());
    change(o);
    EXPECT_EQ(train(o), expected) << what;
  };
  expect_same("2 threads", [](DrafterOptions& o) { o.threads = 2; });
  expect_same("3 threads", [](DrafterOptions& o) { o.threads = 3; });
  for (const std::string& set : instruction_sets())
    if (is_supported(set)) expect_same(set, [&](DrafterOptions& o) { o.instruction_set = set; });
}

// What does show, so that the test above can fail.
TEST_P(DrafterTraining, OptionsShow) {
  const std::string expected = train(options_of(GetParam()));
  const auto expect_other = [&](const char* what, auto change) {
    DrafterOptions o = options_of(GetParam());
    change(o);
    EXPECT_NE(train(o), expected) << what;
  };
  expect_other("a rate one ulp larger",
               [](DrafterOptions& o) { o.recipe.optimizer.rate *= 1 + 1e-7; });
  expect_other("another decay of levels",
               [](DrafterOptions& o) { o.recipe.drafter.decay = 0.79f; });
  expect_other("another order of rows", [](DrafterOptions& o) { o.recipe.rows = 2; });
  expect_other("another target",
               [](DrafterOptions& o) { o.weights = dummy_weights(o.target.spec, 2); });
}

TEST_P(DrafterTraining, GoesOnFromItsState) {
  const DrafterOptions options = options_of(GetParam());
  Numbers source(kVocab);
  RowPacker packer(source, options.recipe.context, 0);
  DrafterTrainer whole(options);
  TrainingState state;
  RowPacker::State data;
  for (int i = 0; i < 3; ++i) {
    if (i == 1) {
      whole.copy_state(state);
      data = packer.state();
    }
    whole.step(next_rows(packer, options.recipe.rows));
  }
  RowPacker again(source, options.recipe.context, 0);
  again.restore(data);
  DrafterTrainer rest(options, &state);
  for (int i = 1; i < 3; ++i) rest.step(next_rows(again, options.recipe.rows));
  EXPECT_EQ(digest(rest), digest(whole));
  EXPECT_EQ(rest.steps_done(), 3);
}

TEST_P(DrafterTraining, Learns) {
  const DrafterOptions options = options_of(GetParam());
  Numbers source(kVocab);
  RowPacker packer(source, options.recipe.context, 0);
  DrafterTrainer trainer(options);
  const std::vector<PackedRow> rows = next_rows(packer, 8);
  const std::vector<LevelScore> before = trainer.evaluate(rows);
  for (int i = 0; i < 60; ++i) trainer.step(next_rows(packer, options.recipe.rows));
  const std::vector<LevelScore> after = trainer.evaluate(rows);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_LT(after[i].loss, 0.8 * before[i].loss) << "level " << i;
    EXPECT_GT(after[i].agreed, before[i].agreed) << "level " << i;
    EXPECT_EQ(after[i].count, before[i].count);
  }
}

// The target's head with larger weights: what it says is all but certain, so that the mean of
// -log-probability of its likeliest tokens is the loss that is learned.
class Sharp : public TensorSource {
 public:
  explicit Sharp(std::shared_ptr<const TensorSource> inner) : inner_(std::move(inner)) {}
  const std::vector<std::string>& names() const override { return inner_->names(); }
  bool has(std::string_view name) const override { return inner_->has(name); }
  const TensorInfo& info(std::string_view name) const override { return inner_->info(name); }
  std::string where(std::string_view name) const override { return inner_->where(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (name != "lm_head.weight") return inner_->read(name, first, count, as, out);
    std::vector<float> values(static_cast<size_t>(count));
    inner_->read(name, first, count, DType::f32, values.data());
    for (float& value : values) value *= 64;
    convert_elements(values.data(), DType::f32, count, as, out);
  }

 private:
  std::shared_ptr<const TensorSource> inner_;
};

// A graph with a target's results for one batch.
class OneBatch {
 public:
  explicit OneBatch(DrafterOptions options) : options_(std::move(options)) {
    const DrafterRecipe& r = options_.recipe;
    Numbers source(kVocab);
    RowPacker packer(source, r.context, 0);
    fill_batch(next_rows(packer, r.rows), batch_);
    target_ = std::make_unique<Teacher>(
        TeacherOptions{.model = options_.target, .weights = options_.weights},
        select_kernels(Order::portable, "auto"), *device_, pool_, r.rows, r.context, 3);
    graph_ = make_drafter_graph(
        r.drafter, r.optimizer,
        {options_.target, *options_.weights, target_->decoder().weights->final_norm()},
        options_.frequent, *device_, math_);
    batch_.aux_layers.assign(graph_->aux_layers().begin(), graph_->aux_layers().end());
    target_->run(batch_);
    weights_.assign(batch_.rows.size(), 1.0f / static_cast<float>(batch_.rows.size()));
    state_ = graph_->parameters().first_state(3, *options_.weights);
  }

  DrafterParameters& parameters() { return graph_->parameters(); }
  const TrainingState& state() const { return state_; }
  double loss(const TrainingState& state, bool learns) {
    parameters().load(state);
    graph_->publish();
    parameters().clear_gradients(pool_);
    std::vector<LevelScore> levels(static_cast<size_t>(graph_->levels()));
    graph_->run({batch_, target_->aux_hidden(), target_->scores(), weights_}, learns, true, levels);
    double loss = 0, share = 1;
    for (const LevelScore& level : levels) {
      loss += share * level.loss * weights_[0];
      share *= options_.recipe.drafter.decay;
    }
    return loss;
  }

 private:
  DrafterOptions options_;
  std::unique_ptr<Device> device_ = make_host_device();
  ThreadPool pool_{1};
  DrafterMath math_{*device_, pool_, "auto", options_.recipe.rows* options_.recipe.context};
  std::unique_ptr<Teacher> target_;
  std::unique_ptr<DrafterGraph> graph_;
  Batch batch_;
  std::vector<float> weights_;
  TrainingState state_;
};

// Along its gradient each tensor by itself changes the loss as much as the gradient says.
TEST_P(DrafterTraining, GradientsAreThoseOfTheLoss) {
  DrafterOptions options = options_of(GetParam());
  options.weights = std::make_shared<Sharp>(options.weights);
  options.recipe.drafter.vocab = kVocab;
  options.frequent.clear();
  for (int32_t token = 0; token < kVocab; ++token) options.frequent.push_back(token);
  OneBatch one(options);
  TrainingState state = one.state();
  // Random where it begins as zeros, so that every gradient is something.
  std::mt19937 random(7);
  if (GetParam().method == DrafterMethod::medusa)
    for (int i = 0; i < one.parameters().tensors(); ++i)
      for (int64_t j = 0; j < one.parameters().count(i); ++j)
        state.master[one.parameters().offset(i) + j] =
            std::normal_distribution<float>(0, 0.08f)(random);
  one.loss(state, true);
  const float* all = one.parameters().gradient(0);
  const std::vector<float> gradients(all, all + one.parameters().size());
  for (int i = 0; i < one.parameters().tensors(); ++i) {
    const int64_t begin = one.parameters().offset(i), end = begin + one.parameters().count(i);
    double squares = 0, most = 0, size = 0;
    for (int64_t j = begin; j < end; ++j) {
      size += double{state.master[j]} * state.master[j] / static_cast<double>(end - begin);
      squares += double{gradients[j]} * gradients[j];
      most = std::max(most, std::fabs(double{gradients[j]}));
    }
    ASSERT_GT(squares, 0) << one.parameters().name(i);
    const double step = 0.15 * std::sqrt(size) / most;
    const auto moved = [&](double by) {
      TrainingState there = state;
      for (int64_t j = begin; j < end; ++j)
        there.master[j] += static_cast<float>(by * gradients[j]);
      return one.loss(there, false);
    };
    const double slope = (moved(step) - moved(-step)) / (2 * step * squares);
    EXPECT_NEAR(slope, 1, 0.15) << one.parameters().name(i);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, DrafterTraining,
                         testing::Values(kMedusa, kEagle, kEagleOfTargetsWidth),
                         [](const auto& of) { return std::string(of.param.name); });

// The attention of an unrolled layer beside its definition in doubles, and its gradient beside
// differences of it.
class Unrolled : public testing::Test {
 protected:
  static constexpr int kSteps = 3, kRows = 32;
  Unrolled() {
    for (int32_t t = 0; t < kRows; ++t)  // sequences of 9, 2 and the rest
      batch_.rows.push_back({0, t < 9 ? t : t < 11 ? t - 9 : t - 11, t < 9 ? 0 : t < 11 ? 1 : 2});
    std::mt19937 random(5);
    for (auto& of_step : qkv_) {
      of_step.resize(static_cast<size_t>(kRows * shape_.width()));
      for (float& x : of_step) x = std::normal_distribution<float>()(random);
    }
    d_out_.resize(static_cast<size_t>(kRows * shape_.query_width()));
    for (float& x : d_out_) x = std::normal_distribution<float>()(random);
  }

  std::vector<float> forward() {
    std::vector<float> out(d_out_.size());
    const std::vector<const float*> qkv = {qkv_[0].data(), qkv_[1].data(), qkv_[2].data()};
    unrolled_attention(shape_, batch_, qkv, out.data(), pool_);
    return out;
  }
  double loss() {
    const std::vector<float> out = forward();
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += double{out[i]} * d_out_[i];
    return sum;
  }

  const UnrolledShape shape_{.heads = 4, .kv_heads = 2, .head_dim = 8};
  Batch batch_;
  std::array<std::vector<float>, kSteps> qkv_;
  std::vector<float> d_out_;
  ThreadPool pool_{2};
};

TEST_F(Unrolled, ReadsTheTargetsPastAndThenItsOwn) {
  const std::vector<float> out = forward();
  const int e = shape_.head_dim, last = kSteps - 1;
  for (int t = 0; t < kRows; ++t)
    for (int h = 0; h < shape_.heads; ++h) {
      const int p = batch_.rows[t].position, begin = t - p;
      // Step and row of everything that row t reads.
      std::vector<std::pair<int, int>> slots;
      for (int j = 0; p >= last && j <= p - last; ++j) slots.emplace_back(0, begin + j);
      for (int s = 1; p >= last && s <= last; ++s) slots.emplace_back(s, t - last + s);
      const auto at = [&](int step, int row, int64_t column) {
        return &qkv_[step][row * shape_.width() + column];
      };
      const int64_t key = shape_.query_width() + h / 2 * e;
      std::vector<double> p_of;
      double sum = 0;
      for (const auto& [step, row] : slots) {
        double score = 0;
        for (int i = 0; i < e; ++i)
          score += double{at(last, t, h * e)[i]} * at(step, row, key)[i] / std::sqrt(8.0);
        p_of.push_back(std::exp(score));
        sum += p_of.back();
      }
      for (int i = 0; i < e; ++i) {
        double expected = 0;
        for (size_t j = 0; j < slots.size(); ++j)
          expected +=
              p_of[j] / sum * at(slots[j].first, slots[j].second, key + shape_.kv_width())[i];
        EXPECT_NEAR(out[(t * shape_.heads + h) * e + i], expected, 1e-5) << t << " " << h;
      }
    }
}

TEST_F(Unrolled, GradientIsThatOfTheOutput) {
  std::array<std::vector<float>, kSteps> d_qkv;
  for (auto& of_step : d_qkv) of_step.assign(qkv_[0].size(), 0.0f);
  const std::vector<const float*> qkv = {qkv_[0].data(), qkv_[1].data(), qkv_[2].data()};
  const std::vector<float*> d = {d_qkv[0].data(), d_qkv[1].data(), d_qkv[2].data()};
  unrolled_attention_backward(shape_, batch_, qkv, d_out_.data(), d, pool_);
  constexpr float kStep = 1e-2f;
  for (int s = 0; s < kSteps; ++s)
    for (size_t i = 0; i < qkv_[s].size(); i += 7) {
      // Queries of the steps before are not read.
      const float before = qkv_[s][i];
      qkv_[s][i] = before + kStep;
      const double above = loss();
      qkv_[s][i] = before - kStep;
      const double below = loss();
      qkv_[s][i] = before;
      EXPECT_NEAR(d_qkv[s][i], (above - below) / (2 * kStep), 2e-3) << s << " " << i;
    }
}

TEST(DrafterRecipes, OneThatDoesNotFitItsTargetIsRefused) {
  const auto expect_refused = [](auto change) {
    DrafterOptions o = options_of(kEagle);
    change(o);
    EXPECT_THROW(DrafterTrainer{o}, UsageError);
  };
  expect_refused([](DrafterOptions& o) { o.recipe.drafter.features = {1, 2, 4}; });
  expect_refused([](DrafterOptions& o) { o.recipe.drafter.features = {2, 2, 3}; });
  expect_refused([](DrafterOptions& o) { o.recipe.drafter.hidden = 40; });
  expect_refused([](DrafterOptions& o) { o.recipe.drafter.vocab = kVocab + 1; });
  expect_refused([](DrafterOptions& o) { o.recipe.context = 40; });
  expect_refused([](DrafterOptions& o) { o.recipe.optimizer.warmup = 60; });
}

}  // namespace
}  // namespace invar
