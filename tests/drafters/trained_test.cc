// What `invar train` writes for a drafter is what the drafter reads: after the same rows both say
// the same, for each level.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "drafters/draft_decoder.h"
#include "drafters/eagle_checkpoint.h"
#include "drafters/medusa.h"
#include "engine/model_description.h"
#include "kernels/select.h"
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
        TeacherOptions{.model = options.target, .weights = options.weights},
        select_kernels(Order::portable, "auto"), *device_, model_.pool(), 1, kTokens, 3);
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

// The drafter's own layer, row by row as it drafts.
class Replay {
 public:
  Replay(const EagleCheckpoint& checkpoint, Model& target)
      : decoder_(checkpoint.spec(), checkpoint.tensors(), target, target.pool(),
                 {.blocks = 2 * kBlocks, .max_rows = 1, .max_logit_rows = 1}) {}

  // Row `t` of the target's past, or the next row of what the drafter says itself behind it, which
  // the row after the past takes the place of. Leaves the layer's output and the logits.
  void past(int32_t token, int32_t t, std::span<const float> features) {
    run(token, t, {features.begin(), features.end()}, true);
  }
  void own(int32_t token, int32_t position) { run(token, position, output, false); }
  std::vector<float> output, logits;

 private:
  static constexpr int kBlocks = (kTokens + kLevels) / 32 + 1;

  void run(int32_t token, int32_t position, std::vector<float> features, bool fuses) {
    const Batch batch{.rows = {{.token = token, .position = position, .features = 0}},
                      .sequences = {{{3, 0, 4}}},
                      .logit_rows = {0},
                      .aux_layers = {0},
                      .features = std::move(features),
                      .fuses_features = fuses};
    ForwardIo io;
    decoder_.run(batch, io);
    output.assign(io.aux_hidden.begin(), io.aux_hidden.end());
    logits.assign(io.logits.begin(), io.logits.end());
  }

  DraftDecoder decoder_;
};

struct EagleWidth {
  int width;
  bool shares_embedding;
};

// Of a width of its own, and of the target's, whose embedding it then reads: the one in the
// target's memory, or a copy.
class TrainedEagle : public TrainedDrafter, public testing::WithParamInterface<EagleWidth> {};

TEST_P(TrainedEagle, SaysWhatItWasTrainedToSay) {
  const DrafterOptions o = options(DrafterMethod::eagle3, GetParam().width);
  const std::vector<LevelScore> expected = train(o);
  const auto target_weights = open_weights(model_.options());
  const EagleCheckpoint checkpoint(directory_, EagleKind::eagle3, model_.spec(), *target_weights,
                                   GetParam().shares_embedding);
  Replay replay(checkpoint, model_);
  run_target(o, checkpoint.aux_layers());
  const std::vector<int32_t> tokens = row(1).tokens;
  const std::vector<int32_t>& ids = checkpoint.target_ids();
  std::vector<double> losses(kLevels);
  for (int32_t t = 0; t + 2 < kTokens; ++t) {
    std::vector<float> features;
    for (const int32_t f : checkpoint.features()) {
      const auto x = hidden(static_cast<size_t>(f), static_cast<size_t>(t));
      features.insert(features.end(), x.begin(), x.end());
    }
    for (int32_t s = 0; s < kLevels && t + s + 2 < kTokens; ++s) {
      if (s == 0)
        replay.past(tokens[t + 1], t, features);
      else
        replay.own(tokens[t + s + 1], t + s);
      const std::vector<float>& logits = replay.logits;
      const int32_t wanted = target_->scores().argmax[t + s + 1];
      const auto known = std::ranges::find(ids, wanted);
      if (known == ids.end()) continue;  // a token that it does not know
      const float most = *std::ranges::max_element(logits);
      double sum = 0;
      for (const float x : logits) sum += std::exp(x - most);
      losses[s] -= logits[static_cast<size_t>(known - ids.begin())] - most - std::log(sum);
    }
  }
  for (int s = 0; s < kLevels; ++s) {
    EXPECT_GT(expected[s].loss, 1) << "level " << s;
    EXPECT_NEAR(losses[s], expected[s].loss, 0.02 * expected[s].loss) << "level " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, TrainedEagle,
                         testing::Values(EagleWidth{64, true}, EagleWidth{128, true},
                                         EagleWidth{128, false}));

}  // namespace
}  // namespace invar
