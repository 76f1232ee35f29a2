// What `invar train` writes for a drafter is what the drafter reads: after the same rows both say
// the same, for each level.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "drafters/eagle_layer.h"
#include "drafters/medusa.h"
#include "model/families/make_model.h"
#include "train/drafter/drafter_trainer.h"
#include "train/packed_batch.h"
#include "train/row_packer.h"

namespace invar {
namespace {

constexpr int kTokens = 64, kLevels = 3;

class TrainedDrafter : public testing::Test {
 protected:
  TrainedDrafter() { std::filesystem::remove_all(directory_); }
  ~TrainedDrafter() override { std::filesystem::remove_all(directory_); }

  // `hidden`: of EAGLE-3.
  DrafterOptions options(DrafterMethod method, int hidden = 0) const {
    DrafterOptions o;
    o.target.spec = model_.spec();
    o.weights = dummy_weights(model_.spec(), 7);
    o.threads = 1;
    o.recipe.drafter = {.method = method, .levels = kLevels};
    o.recipe.context = kTokens;
    o.recipe.optimizer = {.rate = 1e-2, .warmup = 1, .steps = 24};
    if (method == DrafterMethod::medusa) return o;
    DrafterSpec& d = o.recipe.drafter;
    d.hidden = hidden, d.heads = 4, d.kv_heads = 2, d.head_dim = 16, d.ffn = 96, d.vocab = 300;
    d.features = {1, 2, 4};
    for (int32_t token = 0; token < 300; ++token) o.frequent.push_back(token + token / 2);
    return o;
  }

  // One sequence that fills a row.
  static PackedRow row(uint32_t seed) {
    std::mt19937 random(seed);
    Document document;
    for (int i = 0; i < kTokens; ++i) {
      document.tokens.push_back(static_cast<int32_t>(random() % 16 * 8));
      document.wanted.push_back(1);
    }
    PackedRow row;
    append_sequence(row, document);
    return row;
  }

  // Trains on row 1, writes what came of it, and says how it does there.
  std::vector<LevelScore> train(const DrafterOptions& o) {
    DrafterTrainer trainer(o);
    for (int i = 0; i < o.recipe.optimizer.steps; ++i) trainer.step(std::vector{row(1)});
    ThreadPool pool(1);
    trainer.write(directory_, pool);
    return trainer.evaluate(std::vector{row(1)});
  }

  // What the target says of row 1.
  void run_target(const DrafterOptions& options, std::vector<int32_t> aux_layers) {
    fill_batch(std::vector{row(1)}, batch_);
    batch_.aux_layers = std::move(aux_layers);
    target_ = std::make_unique<Teacher>(
        TeacherOptions{.model = options.target, .weights = options.weights}, "auto", *device_,
        model_.pool(), kTokens, packed_blocks(1, kTokens), kTrainingBlockSize, 3);
    target_->run(batch_);
  }
  std::span<const float> hidden(size_t layer, size_t t) const {
    const size_t width = static_cast<size_t>(model_.spec().hidden);
    return target_->aux_hidden().subspan((layer * kTokens + t) * width, width);
  }

  const std::string directory_ =
      (std::filesystem::temp_directory_path() / fmt::format("invar-trained-{}", getpid())).string();
  Model model_{{.model = "tiny", .load_format = "dummy:7", .threads = 1}};
  std::unique_ptr<Device> device_ = make_host_device();
  Batch batch_;
  std::unique_ptr<Teacher> target_;
};

TEST_F(TrainedDrafter, MedusaSaysWhatItWasTrainedToSay) {
  const DrafterOptions o = options(DrafterMethod::medusa);
  const std::vector<LevelScore> expected = train(o);
  Medusa medusa(directory_, {}, model_, model_.pool());
  EXPECT_EQ(medusa.num_heads(), kLevels);
  run_target(o, {medusa.aux_layers().begin(), medusa.aux_layers().end()});
  const std::vector<int32_t> tokens = row(1).tokens;
  const SamplingParams greedy{.temperature = 0};
  std::vector<int64_t> agreed(kLevels);
  for (int32_t t = 0; t + 2 < kTokens; ++t) {
    const auto known = std::span(tokens).first(static_cast<size_t>(t) + 2);
    const int32_t kept_row = t;
    const KeptRows kept{.id = 1, .tokens = known, .position = t, .rows = {&kept_row, 1}};
    medusa.take_hidden({&kept, 1}, target_->aux_hidden(), kTokens);
    const DraftRequest request{.id = 1, .tokens = known, .params = &greedy, .most = kLevels};
    DraftTree tree;
    medusa.propose({&request, 1}, {&tree, 1});
    ASSERT_EQ(std::ssize(tree), kLevels);
    for (int32_t i = 0; i < kLevels && t + i + 2 < kTokens; ++i)
      agreed[i] += tree[i].token == target_->scores().argmax[t + i + 1];
  }
  // Of rows whose next tokens are wanted: the last one has none.
  for (int i = 0; i < kLevels; ++i) {
    EXPECT_NEAR(agreed[i], expected[i].agreed, 1) << "level " << i;
    EXPECT_GT(expected[i].agreed, 10) << "level " << i;
  }
}

// The loss of each level by the drafter's own layer, row by row as it drafts.
class Replay {
 public:
  Replay(EagleLayer& layer, const EagleWeights& weights)
      : layer_(layer), kv_(weights.spec.kv_width()) {}

  // Row `t` of the target's past.
  std::vector<float> past(int32_t token, int32_t t, std::span<const float> feature) {
    layer_.begin({&token, 1}, {&t, 1}, feature);
    keep(keys_, values_);
    return finish({run(keys_, values_)});
  }
  // The next row of what the drafter says itself, behind the past up to row `t`.
  std::vector<float> own(int32_t token, int32_t position, int32_t t,
                         std::span<const float> feature) {
    layer_.begin({&token, 1}, {&position, 1}, feature);
    keep(own_keys_, own_values_);
    return finish({{keys_.data(), values_.data(), t + 1}, run(own_keys_, own_values_)});
  }
  void forget_own() {
    own_keys_.clear();
    own_values_.clear();
  }

 private:
  void keep(std::vector<float>& keys, std::vector<float>& values) {
    keys.insert(keys.end(), layer_.key(0).begin(), layer_.key(0).end());
    values.insert(values.end(), layer_.value(0).begin(), layer_.value(0).end());
  }
  KvRun run(const std::vector<float>& keys, const std::vector<float>& values) const {
    return {keys.data(), values.data(), static_cast<int32_t>(std::ssize(keys) / kv_)};
  }
  std::vector<float> finish(std::vector<KvRun> runs) {
    const auto out = layer_.finish({&runs, 1});
    return {out.begin(), out.end()};
  }

  EagleLayer& layer_;
  const int64_t kv_;
  std::vector<float> keys_, values_, own_keys_, own_values_;
};

// Of a width of its own, and of the target's, whose embedding it then reads.
class TrainedEagle : public TrainedDrafter, public testing::WithParamInterface<int> {};

TEST_P(TrainedEagle, SaysWhatItWasTrainedToSay) {
  const DrafterOptions o = options(DrafterMethod::eagle3, GetParam());
  const std::vector<LevelScore> expected = train(o);
  HostProducts products(model_.host_kernels(), model_.pool());
  const EagleWeights weights(directory_, EagleKind::eagle3, model_, products);
  EagleLayer layer(weights, products, model_.pool());
  run_target(o, weights.aux_layers);
  const std::vector<int32_t> tokens = row(1).tokens;
  Replay replay(layer, weights);
  std::vector<double> losses(kLevels);
  for (int32_t t = 0; t + 2 < kTokens; ++t) {
    std::vector<float> features, out;
    for (const int32_t f : weights.features) {
      const auto x = hidden(static_cast<size_t>(f), static_cast<size_t>(t));
      features.insert(features.end(), x.begin(), x.end());
    }
    replay.forget_own();
    for (int32_t s = 0; s < kLevels && t + s + 2 < kTokens; ++s) {
      out = s == 0 ? replay.past(tokens[t + 1], t, layer.fuse(features))
                   : replay.own(tokens[t + s + 1], t + s, t, out);
      const std::vector<float> logits = layer.logits(out);
      const auto wanted = static_cast<size_t>(target_->scores().argmax[t + s + 1]);
      if (std::isinf(logits[wanted])) continue;  // a token that it does not know
      const float most = *std::ranges::max_element(logits);
      double sum = 0;
      for (const float x : logits) sum += std::exp(x - most);
      losses[s] -= logits[wanted] - most - std::log(sum);
    }
  }
  for (int s = 0; s < kLevels; ++s) {
    EXPECT_GT(expected[s].loss, 1) << "level " << s;
    EXPECT_NEAR(losses[s], expected[s].loss, 0.02 * expected[s].loss) << "level " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, TrainedEagle, testing::Values(64, 128));

}  // namespace
}  // namespace invar
