// Drafts by the target's first layers on the target's own keys and values, and verification that
// goes on from them: the same bits, and the layers are not computed twice.
#include "drafters/early_exit.h"

#include <gtest/gtest.h>

#include <map>

#include "drafters/make_proposer.h"
#include "engine/engine.h"

namespace invar {
namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Digest> hashes;
  bool operator==(const Answer&) const = default;
};

struct Answers final : OutputSink {
  void on_token(const TokenOutput& output) override {
    of[output.request].tokens.push_back(output.token);
    of[output.request].hashes.push_back(output.logits_hash);
  }
  std::map<int64_t, Answer> of;
  int64_t accepted = 0, preempted = 0;
};

ModelOptions tiny() {
  return {.model = "tiny", .load_format = "dummy:7", .threads = 2};
}

// Greedy and sampled requests of several lengths, in chunks of prompts beside the decodes.
Answers answers(Model& model, std::unique_ptr<Proposer> proposer, int64_t kv_bytes = 16 << 20) {
  EngineOptions options{.block_size = 32, .kv_bytes = kv_bytes};
  options.scheduler.max_model_len = 192;
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_batched_tokens = 48;
  Engine engine(model, options, nullptr, std::move(proposer));
  Answers answers;
  for (int id = 1; id <= 6; ++id) {
    Request request{.id = id};
    for (int i = 0; i < 3 + 13 * id; ++i) request.prompt.push_back((i * 11 + id) % 500);
    request.params.max_tokens = 36;
    request.params.temperature = id % 2 ? 0.0 : 0.9;
    request.params.seed = static_cast<uint64_t>(id);
    engine.add(std::move(request));
  }
  while (engine.step(answers)) {
    answers.accepted += engine.last_step().accepted_tokens;
    answers.preempted += engine.last_step().preempted;
  }
  EXPECT_EQ(engine.check_integrity(), "");
  return answers;
}

std::unique_ptr<Proposer> early_exit(Model& model, const std::string& more = "") {
  return make_proposer(
      parse_speculative_config(R"({"method":"early_exit","exit_layer":3)" + more + "}"), model,
      {.max_sequences = 8});
}

// Tells the engine what is left of the hidden states that it goes on from.
class Between final : public Proposer {
 public:
  enum class Tells { nothing, others };
  Between(std::unique_ptr<Proposer> inner, Tells tells) : inner_(std::move(inner)), tells_(tells) {}

  std::string_view name() const override { return inner_->name(); }
  int32_t most_nodes() const override { return inner_->most_nodes(); }
  int32_t shared_layers() const override { return inner_->shared_layers(); }
  void share(std::span<KvStorage* const> of_ranks) override { inner_->share(of_ranks); }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    inner_->propose(requests, trees);
  }
  ComputedRows computed_rows(int64_t id) const override {
    if (tells_ == Tells::nothing) return {};
    const ComputedRows rows = inner_->computed_rows(id);
    changed_.assign(rows.hidden.begin(), rows.hidden.end());
    for (float& x : changed_) x = -x;
    return {.position = rows.position, .hidden = changed_};
  }

 private:
  const std::unique_ptr<Proposer> inner_;
  const Tells tells_;
  mutable std::vector<float> changed_;
};

TEST(EarlyExit, DoesNotShowInAnAnswer) {
  Model model(tiny());
  const Answers plain = answers(model, nullptr);
  const Answers drafted = answers(model, early_exit(model));
  EXPECT_EQ(drafted.of, plain.of);
  EXPECT_GT(drafted.accepted, 10);
  EXPECT_EQ(answers(model, early_exit(model, R"(,"num_speculative_tokens":9)")).of, plain.of);
  EXPECT_EQ(answers(model, early_exit(model, R"(,"adaptive":true)")).of, plain.of);
  const DecoderSpec& spec = model.spec();  // eight blocks: they take each other's
  const int64_t block = KvStorage::block_bytes(spec.layers, 32, spec.kv_heads, spec.head_dim);
  const Answers tight = answers(model, early_exit(model), 8 * block);
  EXPECT_EQ(tight.of, plain.of);
  EXPECT_GT(tight.preempted, 0);
  ModelOptions ranks = tiny(), stages = tiny(), portable = tiny();
  ranks.ranks = 2;
  stages.layer_cuts = {1, 3};
  portable.instruction_set = "avx2";
  for (const ModelOptions& options : {ranks, stages, portable}) {
    Model other(options);
    const Answers there = answers(other, early_exit(other));
    EXPECT_EQ(there.of, plain.of);
    EXPECT_EQ(there.accepted, drafted.accepted);
  }
}

// What the drafter computed is what the step goes on from: other hidden states are other answers.
// Without them all layers are computed, and nothing shows.
TEST(EarlyExit, IsWhereTheVerificationGoesOn) {
  Model model(tiny());
  const Answers plain = answers(model, nullptr);
  const auto told = [&](Between::Tells tells) {
    return answers(model, std::make_unique<Between>(early_exit(model), tells)).of;
  };
  EXPECT_EQ(told(Between::Tells::nothing), plain.of);
  EXPECT_NE(told(Between::Tells::others), plain.of);
}

// The control: where rows depend on their neighbours, drafts show.
TEST(EarlyExit, ShowsUnderTheBaseline) {
  ModelOptions control = tiny();
  control.arithmetic = "control";
  Model model(control);
  EXPECT_NE(answers(model, early_exit(model)).of, answers(model, nullptr).of);
}

}  // namespace
}  // namespace invar
