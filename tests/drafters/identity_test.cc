// The promise over many prompts: with any drafter the tokens, the hashes of the logits and the
// log-probabilities of every answer are those of plain decoding. 40 prompts; 1000 with --full.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "drafters/make_proposer.h"
#include "engine/engine.h"
#include "numerics/philox.h"

namespace invar {
namespace {

bool is_full() {
  return std::getenv("INVAR_FULL_TESTS") != nullptr;
}
int prompts() {
  return is_full() ? 1000 : 40;
}

// Greedy, at 0.8, with top-p 0.95, with top-k 40, in turn; every other one repeats itself, so that
// lookup has something to find.
Request request(int id, int32_t vocab, uint64_t seed) {
  Request r{.id = id};
  for (uint32_t i = 0; i < 6 + static_cast<uint32_t>(id) % 29; ++i) {
    const uint32_t at = id % 2 ? i % 5 : i;
    const auto random = philox4x32({at, static_cast<uint32_t>(id), 0, 0}, 1);
    r.prompt.push_back(static_cast<int32_t>(random[0] % static_cast<uint32_t>(vocab)));
  }
  r.params.max_tokens = is_full() ? 24 : 6;
  r.params.seed = seed + static_cast<uint64_t>(id);
  r.params.temperature = id % 4 ? 0.8 : 0.0;
  if (id % 4 == 2) r.params.top_p = 0.95;
  if (id % 4 == 3) r.params.top_k = 40;
  r.params.logprobs = 2;
  return r;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Digest> hashes;
  std::vector<std::optional<TokenLogprobs>> logprobs;
  bool operator==(const Answer&) const = default;
};

struct Answers final : OutputSink {
  void on_token(const TokenOutput& output) override {
    Answer& answer = of[output.request];
    answer.tokens.push_back(output.token);
    answer.hashes.push_back(output.logits_hash);
    answer.logprobs.push_back(output.logprobs);
  }
  std::map<int64_t, Answer> of;
  int64_t accepted = 0;
};

Answers answers(Model& model, const std::string& config, uint64_t seed = 0) {
  EngineOptions options{.kv_bytes = 64 << 20};
  options.scheduler.max_num_seqs = 16;
  options.scheduler.max_model_len = 128;
  std::unique_ptr<Proposer> proposer;
  if (!config.empty())
    proposer = make_proposer(parse_speculative_config(config), model, {.max_sequences = 16});
  Engine engine(model, options, nullptr, std::move(proposer));
  for (int id = 0; id < prompts(); ++id) engine.add(request(id, model.spec().vocab, seed));
  Answers answers;
  while (engine.step(answers)) answers.accepted += engine.last_step().accepted_tokens;
  return answers;
}

TEST(Identity, NoDrafterChangesABitOfAnyAnswer) {
  const std::string models = INVAR_SOURCE_DIR "/models/";
  Model model({.model = models + "story", .threads = 2, .mtp_module = true});
  const Answers plain = answers(model, "");
  ASSERT_EQ(std::ssize(plain.of), prompts());
  const std::string draft = "\"model\":\"" + models + "draft\"";
  int64_t accepted = 0;
  for (const std::string& config :
       {std::string(R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})"),
        std::string(R"({"method":"suffix"})"), std::string(R"({"method":"lookahead"})"),
        "{" + draft + R"(,"num_speculative_tokens":4})",
        "{" + draft + R"(,"num_speculative_tokens":4,"adaptive":true})",
        "{" + draft + R"(,"speculative_token_tree":"[(0,),(1,),(0,0),(0,1),(1,0)]"})",
        std::string(R"({"method":"early_exit","num_speculative_tokens":3})"),
        std::string(R"({"method":"mtp","num_speculative_tokens":4})"),
        std::string(R"({"method":"mtp","num_speculative_tokens":6,"adaptive":true})")}) {
    const Answers drafted = answers(model, config);
    EXPECT_EQ(drafted.of, plain.of) << config;
    accepted += drafted.accepted;
  }
  EXPECT_GT(accepted, 0) << "the drafts were used";
  // The control: the comparison sees another seed.
  EXPECT_NE(answers(model, "", 1).of, plain.of);
}

}  // namespace
}  // namespace invar
