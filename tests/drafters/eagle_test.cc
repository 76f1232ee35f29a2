// EAGLE's layer: what is published is read, drafts are those of the published algorithm, and no
// answer changes.
#include "drafters/eagle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "../support/fixed_drafts.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "drafters/make_proposer.h"
#include "eagle_case.h"
#include "engine/engine.h"
#include "speculative/forwarding_proposer.h"

namespace invar {
namespace {

struct Counts {
  int64_t drafts = 0, compared = 0, different = 0;
  bool expects_equal = true;
};

// Compares every draft with that of the published algorithm, from the hidden states that it saw:
// they are known by the tokens that they depend on.
class Comparer final : public ForwardingProposer, public HiddenReader {
 public:
  Comparer(std::unique_ptr<Eagle> inner, const Checkpoint& checkpoint, const EagleOptions& options,
           std::vector<float> final_norm, Counts& counts)
      : ForwardingProposer(std::move(inner)),
        reader_(*ForwardingProposer::hidden_reader()),
        checkpoint_(checkpoint),
        published_(checkpoint),
        options_(options),
        final_norm_(std::move(final_norm)),
        counts_(counts) {}

  HiddenReader* hidden_reader() override { return this; }
  std::span<const int32_t> aux_layers() const override { return reader_.aux_layers(); }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t rows) override {
    reader_.take_hidden(kept, hidden, rows);
    for (const KeptRows& k : kept)
      for (size_t i = 0; i < k.rows.size(); ++i) {
        const size_t width = static_cast<size_t>(checkpoint_.target_width);
        Numbers feature;
        for (size_t layer = 0; layer < aux_layers().size(); ++layer) {
          const auto x = hidden.subspan((layer * rows + k.rows[i]) * width, width);
          feature.insert(feature.end(), x.begin(), x.end());
        }
        if (checkpoint_.kind == EagleKind::eagle) normalise(feature);
        const auto end = k.tokens.begin() + k.position + static_cast<int64_t>(i) + 1;
        features_[{k.tokens.begin(), end}] = feature;
      }
  }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    inner().propose(requests, trees);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (trees[i].empty()) continue;
      ++counts_.drafts;
      if (counts_.drafts % 5 == 0 && requests[i].most == most_nodes())
        compare(requests[i], trees[i]);
    }
  }

 private:
  using Path = std::vector<int32_t>;

  // The features of eagle stand behind the target's final norm.
  void normalise(Numbers& x) const {
    const ScopedFlushToZero flush;
    const scalar::Floats y = scalar::normed(scalar::Floats(x.begin(), x.end()), final_norm_, 1e-5f);
    x.assign(y.begin(), y.end());
  }

  void compare(const DraftRequest& request, const DraftTree& tree) {
    ++counts_.compared;
    std::vector<Numbers> features;
    for (size_t i = 1; i < request.tokens.size(); ++i) {
      const auto found = features_.find({request.tokens.begin(), request.tokens.begin() + i});
      ASSERT_NE(found, features_.end());
      features.push_back(found->second);
    }
    std::set<Path> drafted;
    for (int32_t node = 0; node < std::ssize(tree); ++node) {
      Path path;
      for (int32_t at = node; at >= 0; at = tree[at].parent)
        path.insert(path.begin(), tree[at].token);
      drafted.insert(path);
    }
    const std::set<Path> expected = published_tree(request, features);
    counts_.different += drafted != expected;
    if (counts_.expects_equal) {
      EXPECT_EQ(drafted, expected) << "request " << request.id;
    }
  }

  // Steps 1 to 3 of EAGLE-2 (chains are the case k = 1). Sampled: the target's noise is added.
  std::set<Path> published_tree(const DraftRequest& request, const std::vector<Numbers>& features) {
    std::vector<std::pair<double, Path>> all, frontier = {{0, {}}};
    for (int level = 0; level < options_.depth; ++level) {
      std::vector<std::pair<double, Path>> next;
      for (const auto& [score, path] : frontier)
        for (auto& [gain, token] : best_children(request, features, path)) {
          Path child = path;
          child.push_back(token);
          next.emplace_back(score + gain, child);
        }
      std::ranges::stable_sort(next, std::greater(), &std::pair<double, Path>::first);
      all.insert(all.end(), next.begin(), next.end());
      next.resize(std::min<size_t>(next.size(), options_.topk));
      frontier = next;
    }
    std::ranges::stable_sort(all, std::greater(), &std::pair<double, Path>::first);
    std::set<Path> tree;
    for (size_t i = 0; i < all.size() && std::ssize(tree) < options_.num_speculative_tokens; ++i)
      tree.insert(all[i].second);
    return tree;
  }

  std::vector<std::pair<double, int32_t>> best_children(const DraftRequest& request,
                                                        const std::vector<Numbers>& features,
                                                        const Path& path) {
    const SamplingParams& p = *request.params;
    const Numbers logits = published_.logits(request.tokens, features, path);
    const auto noise = [&](int32_t id) {
      const NoiseKey key{.seed = p.seed,
                         .position = static_cast<uint32_t>(request.tokens.size() + path.size())};
      return p.is_greedy() ? 0 : gumbel_of(random_bits(key, static_cast<uint32_t>(id)));
    };
    std::vector<std::pair<double, int32_t>> children, likeliest;
    for (int i = 0; i < checkpoint_.draft_vocab; ++i)
      likeliest.emplace_back(p.is_greedy() ? logits[i] : logits[i] / p.temperature,
                             checkpoint_.target_id(i));
    std::ranges::sort(likeliest, std::greater());
    const auto preference = [&](const auto& token) { return token.first + noise(token.second); };
    const auto sample = *std::ranges::max_element(likeliest, {}, preference);
    if (!p.is_greedy()) likeliest.resize(64);  // but for the sample no other is looked at
    if (std::ranges::find(likeliest, sample) == likeliest.end()) likeliest.push_back(sample);
    double sum = 0;
    for (const auto& token : likeliest) {
      children.emplace_back(preference(token), token.second);
      sum += std::exp(preference(token));
    }
    for (auto& [share, id] : children) share -= std::log(sum);
    std::ranges::sort(children, std::greater());
    children.resize(options_.topk);
    return children;
  }

  HiddenReader& reader_;
  const Checkpoint& checkpoint_;
  Published published_;
  const EagleOptions options_;
  const std::vector<float> final_norm_;
  Counts& counts_;
  std::map<std::vector<int32_t>, Numbers> features_;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Digest> hashes;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<int64_t, Answer>;

struct Tally {
  int64_t drafts = 0, preempted = 0, cached = 0;
};

class EagleTest : public testing::Test {
 protected:
  EagleTest() { std::filesystem::remove_all(directory_); }
  ~EagleTest() override { std::filesystem::remove_all(directory_); }

  static ModelOptions tiny() { return {.model = "tiny", .load_format = "dummy:7", .threads = 2}; }
  Checkpoint checkpoint(EagleKind kind, const DrafterTraits& traits = {}) {
    return {kind, model_.spec(), TargetTables(model_), traits};
  }
  // Answers along the drafts of `made`, which are compared with those of the published algorithm
  // for `expected`.
  Answers compared(const Checkpoint& made, const Checkpoint& expected, const EagleOptions& options,
                   Counts& counts, Tally* tally = nullptr) {
    made.write(directory_);
    return answers(model_,
                   std::make_unique<Comparer>(eagle(options, model_), expected, options,
                                              TargetTables(model_).final_norm(), counts),
                   tally);
  }
  std::unique_ptr<Eagle> eagle(const EagleOptions& options, Model& model) {
    return std::make_unique<Eagle>(directory_, options, model, model.pool());
  }

  // Sampled and greedy requests, twice: the second time the prefix cache has their beginnings.
  static Answers answers(Model& model, std::unique_ptr<Proposer> proposer, Tally* tally = nullptr,
                         int64_t kv_bytes = 16 << 20) {
    struct Keep final : OutputSink {
      void on_token(const TokenOutput& output) override {
        answers[output.request].tokens.push_back(output.token);
        answers[output.request].hashes.push_back(output.logits_hash);
      }
      Answers answers;
    } sink;
    EngineOptions options{.block_size = 32, .kv_bytes = kv_bytes};
    options.scheduler.max_model_len = 192;
    options.scheduler.max_num_seqs = 8;
    options.scheduler.max_num_batched_tokens = 64;
    Engine engine(model, options, nullptr, std::move(proposer));
    for (int round = 0; round < 2; ++round) {
      for (int id = 1; id < 6; ++id) {
        Request request{.id = 10 * round + id};
        for (int i = 0; i < 3 + 13 * id; ++i) request.prompt.edit().push_back((i * 11 + id) % 500);
        request.params.max_tokens = 14;
        request.params.temperature = id % 2 ? 0.0 : 0.9;
        request.params.seed = static_cast<uint64_t>(id);
        engine.add(std::move(request));
      }
      while (engine.step(sink)) {
        if (!tally) continue;
        tally->drafts += engine.last_step().drafts;
        tally->preempted += engine.last_step().preempted;
        tally->cached += engine.last_step().cached;
      }
      EXPECT_EQ(engine.check_integrity(), "");
    }
    return sink.answers;
  }

  const std::string directory_ = testing::TempDir() + "eagle_test_" + std::to_string(getpid());
  Model model_{tiny()};
};

TEST_F(EagleTest, DraftsAreThoseOfThePublishedAlgorithm) {
  const Answers plain = answers(model_, nullptr);
  for (const EagleKind kind : {EagleKind::eagle3, EagleKind::eagle})
    for (const bool is_tree : {false, true}) {
      const Checkpoint made = checkpoint(kind);
      const EagleOptions options{.kind = kind,
                                 .num_speculative_tokens = is_tree ? 12 : 4,
                                 .topk = is_tree ? 4 : 1,
                                 .depth = is_tree ? 3 : 4};
      Counts counts;
      Tally tally;
      EXPECT_EQ(compared(made, made, options, counts, &tally), plain);
      EXPECT_GT(counts.compared, 8);
      EXPECT_EQ(tally.cached, 4 * 32);
    }
}

// What only some drafters have, each alone. The control: the definition without it drafts something
// else.
TEST_F(EagleTest, SoAreThoseOfDraftersWithMore) {
  const Answers plain = answers(model_, nullptr);
  const auto expect_known = [&](EagleKind kind, const DrafterTraits& more, bool is_controlled) {
    const EagleOptions options{.kind = kind, .num_speculative_tokens = 9, .topk = 3, .depth = 3};
    const Checkpoint made = checkpoint(kind, more);
    Counts counts;
    EXPECT_EQ(compared(made, made, options, counts), plain);
    EXPECT_GT(counts.compared, 8);
    if (!is_controlled) return;
    Checkpoint without = made;
    without.traits = {};
    Counts control{.expects_equal = false};
    EXPECT_EQ(compared(made, without, options, control), plain);
    EXPECT_GT(control.different, 0);
  };
  expect_known(EagleKind::eagle3, {.residual_is_normed = true}, true);
  expect_known(EagleKind::eagle3, {.logit_scale = 0.25}, true);
  expect_known(EagleKind::eagle3, {.has_biases = true}, false);
  expect_known(EagleKind::eagle, {.has_biases = true}, false);
  expect_known(EagleKind::eagle, {.is_hass = true}, false);
}

TEST_F(EagleTest, NoneShowsInAnAnswer) {
  checkpoint(EagleKind::eagle3).write(directory_);
  const std::string config = R"({"method":"eagle3","model":")" + directory_ + "\"";
  const auto proposer = [&](Model& model, const std::string& more, DrafterRoom room = {}) {
    return make_proposer(fixed_drafts(config + more + "}"), model, room);
  };
  const Answers plain = answers(model_, nullptr);
  const std::string tree = R"(,"num_speculative_tokens":9,"eagle_topk":3)";
  EXPECT_EQ(answers(model_, proposer(model_, "")), plain);
  EXPECT_EQ(answers(model_, proposer(model_, tree)), plain);
  EXPECT_EQ(answers(model_, proposer(model_, tree + R"(,"adaptive":true)")), plain);
  Tally tight;  // they take each other's blocks
  EXPECT_EQ(answers(model_, proposer(model_, tree), &tight, 24 * (64 << 10)), plain);
  EXPECT_GT(tight.preempted, 0);
  EXPECT_GT(tight.drafts, 0);
  ModelOptions ranks = tiny(), stages = tiny();
  ranks.ranks = 2;
  stages.layer_cuts = {1, 3};
  for (const ModelOptions& options : {ranks, stages}) {
    Model other(options);
    Tally tally;
    EXPECT_EQ(answers(other, proposer(other, tree), &tally), plain);
    EXPECT_GT(tally.drafts, 60);
    // The target's embedding, which lies on another worker where there are stages.
    const std::string made = R"({"method":"eagle3","model":"dummy:1"})";
    EXPECT_EQ(answers(other, make_proposer(fixed_drafts(made), other, {})), plain);
  }
  // The control: where rows depend on their neighbours, drafts show.
  ModelOptions control = tiny();
  control.arithmetic = "control";
  Model baseline(control);
  EXPECT_NE(answers(baseline, proposer(baseline, tree)), answers(baseline, nullptr));
}

TEST_F(EagleTest, MissingHistoryMeansNoDraft) {
  checkpoint(EagleKind::eagle3).write(directory_);
  const Answers plain = answers(model_, nullptr);
  Tally roomy, tight;
  EXPECT_EQ(answers(model_, eagle({}, model_), &roomy), plain);
  EagleOptions options;
  options.room.kv_bytes =
      3 * SequenceStore::block_bytes(std::vector{StateShape{2, 16}}, 32);  // three blocks
  EXPECT_EQ(answers(model_, eagle(options, model_), &tight), plain);
  EXPECT_GT(tight.drafts, 0);
  EXPECT_LT(tight.drafts, roomy.drafts / 2);
}

TEST_F(EagleTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [&]() -> std::string {
    try {
      eagle({}, model_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  std::filesystem::create_directories(directory_);
  write_file_atomically(directory_ + "/pytorch_model.bin", "x");
  EXPECT_NE(refusal().find("pytorch_model.bin, a pickle, which can run code and is not read; in "
                           "Python, safetensors.torch.save_file("),
            std::string::npos);
  Checkpoint made = checkpoint(EagleKind::eagle3);
  made.write(directory_, "midlayer.hidden_norm.weight");
  EXPECT_NE(refusal().find("the tensor \"midlayer.hidden_norm.weight\" is missing"),
            std::string::npos);
  made.offsets[7] = made.offsets[6] - 1;  // two tokens of one id
  made.write(directory_);
  EXPECT_NE(refusal().find("expected a token of its own from 0 to 511 for the draft's token 7"),
            std::string::npos);
  made.offsets[7] = 15;
  made.write(directory_);
  EXPECT_EQ(refusal(), "");
  std::string config = json::dump(json::parse_file(directory_ + "/config.json"));
  config.replace(config.find("[1, 2, 4]"), 2, "[4294967297");  // whose lower half is 1
  write_file_atomically(directory_ + "/config.json", config);
  EXPECT_NE(refusal().find("expected three numbers of the target's layers from 1 to 4, found "
                           "[4294967297, 2, 4]"),
            std::string::npos)
      << refusal();
  made.tensors["midlayer.self_attn.o_proj.bias"] = Numbers(40);
  made.write(directory_);
  EXPECT_NE(refusal().find("the tensor \"midlayer.self_attn.o_proj.bias\" is not part of a "
                           "drafter that is supported"),
            std::string::npos);
  made.tensors.erase("midlayer.self_attn.o_proj.bias");
  made.vocab = 300;
  made.offsets.resize(100);
  made.write(directory_);
  EXPECT_NE(
      refusal().find("expected a drafter of the target's vocabulary of 512 tokens, found 300"),
      std::string::npos);
}

}  // namespace
}  // namespace invar
