// The promise over many prompts: with any drafter the tokens, the hashes of the logits and the
// log-probabilities of every answer are those of plain decoding. 40 prompts; 1000 with --full. On a
// GPU: INVAR_IDENTITY_DEVICE=cuda INVAR_IDENTITY_PROMPTS=200 drafters_test
// --gtest_filter=Identity.*; INVAR_IDENTITY_DRAFTERS=eagle runs those whose configuration holds
// this text alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "../support/fixed_drafts.h"
#include "base/input_file.h"
#include "base/json.h"
#include "drafters/make_proposer.h"
#include "eagle_case.h"
#include "engine/engine.h"
#include "medusa_case.h"
#include "numerics/philox.h"

namespace invar {
namespace {

bool is_full() {
  return std::getenv("INVAR_FULL_TESTS") != nullptr;
}
// INVAR_IDENTITY_PROMPTS says another number.
int prompts() {
  const char* said = std::getenv("INVAR_IDENTITY_PROMPTS");
  return said ? std::atoi(said) : is_full() ? 1000 : 40;
}
bool is_long() {
  return prompts() > 40;
}
int answer_tokens() {
  return is_long() ? 24 : 6;
}
// INVAR_IDENTITY_DEVICE says another one, such as cuda.
std::string device() {
  const char* said = std::getenv("INVAR_IDENTITY_DEVICE");
  return said ? said : "cpu";
}

// Greedy, at 0.8, with top-p 0.95, with top-k 40, in turn; every other one repeats itself, so that
// lookup has something to find.
Request request(int id, int32_t vocab, uint64_t seed, int tokens) {
  Request r{.id = id};
  for (uint32_t i = 0; i < 6 + static_cast<uint32_t>(id) % 29; ++i) {
    const uint32_t at = id % 2 ? i % 5 : i;
    const auto random = philox4x32({at, static_cast<uint32_t>(id), 0, 0}, 1);
    r.prompt.edit().push_back(static_cast<int32_t>(random[0] % static_cast<uint32_t>(vocab)));
  }
  r.params.max_tokens = tokens;
  r.params.seed = seed + static_cast<uint64_t>(id);
  r.params.temperature = id % 4 ? 0.8 : 0.0;
  if (id % 4 == 2) r.params.top_p = 0.95;
  if (id % 4 == 3) r.params.top_k = 40;
  r.params.logprobs = 2;
  return r;
}

bool is_wanted(const std::string& config) {
  const char* said = std::getenv("INVAR_IDENTITY_DRAFTERS");
  return !said || config.find(said) != std::string::npos;
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
  int nodes = 0;  // of a sequence's tree, the most in the mean of a step
};

Answers answers(Model& model, const std::string& config, uint64_t seed = 0,
                int tokens = answer_tokens()) {
  EngineOptions options{.kv_bytes = 64 << 20};
  options.scheduler.max_num_seqs = 16;
  options.scheduler.max_model_len = 128;
  std::unique_ptr<Proposer> proposer;
  if (!config.empty()) proposer = make_proposer(fixed_drafts(config), model, {.max_sequences = 16});
  Engine engine(model, options, nullptr, std::move(proposer));
  for (int id = 0; id < prompts(); ++id) engine.add(request(id, model.spec().vocab, seed, tokens));
  Answers answers;
  while (engine.step(answers)) {
    const auto& step = engine.last_step();
    answers.accepted += step.accepted_tokens;
    if (step.drafts > 0) answers.nodes = std::max(answers.nodes, step.draft_tokens / step.drafts);
  }
  return answers;
}

// Drafters that nobody trained for the bundled model, beside those that it brings along.
class Made {
 public:
  explicit Made(Model& model) {
    std::filesystem::create_directories(directory_ + "/medusa");
    const TargetTables tables(model);
    write_checkpoint(directory_ + "/medusa", made_heads(model.spec(), tables.head(), 3),
                     model.pool());
    Checkpoint(EagleKind::eagle3, model.spec(), tables).write(directory_ + "/eagle3");
    Checkpoint(EagleKind::eagle, model.spec(), tables).write(directory_ + "/eagle");
  }
  ~Made() { std::filesystem::remove_all(directory_); }
  std::string config(const std::string& method, const std::string& more = "") const {
    return R"({"method":")" + method + R"(","model":")" + directory_ + "/" + method + "\"" + more +
           "}";
  }

 private:
  const std::string directory_ = testing::TempDir() + "identity_test_" + std::to_string(getpid());
};

std::vector<std::string> configs(const std::string& models) {
  const std::string draft = "{\"model\":\"" + models + "draft\",";
  return {
      R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})",
      R"({"method":"suffix"})",
      R"({"method":"lookahead"})",
      draft + R"("num_speculative_tokens":4})",
      draft + R"("num_speculative_tokens":4,"adaptive":true})",
      draft + R"("speculative_token_tree":"[(0,),(1,),(0,0),(0,1),(1,0)]"})",
      R"({"method":"early_exit","num_speculative_tokens":3})",
      R"({"method":"early_exit","speculative_token_tree":"[(0,),(1,),(0,0)]"})",
      R"({"method":"swift","skip_layers":[2,4]})",
      R"({"method":"mtp","num_speculative_tokens":4})",
      R"({"method":"mtp","num_speculative_tokens":6,"adaptive":true})",
      R"({"method":"eagle3","model":")" + models + R"(eagle3"})",
      draft + R"("num_speculative_tokens":8,"draft_confidence":0.35})",
  };
}

std::vector<std::string> configs(const Made& made) {
  return {made.config("medusa"), made.config("eagle3"),
          made.config("eagle3", R"(,"num_speculative_tokens":9,"eagle_topk":3,"eagle_depth":3)"),
          made.config("eagle")};
}

int64_t differences(const Answers& a, const Answers& b) {
  int64_t count = 0;
  for (const auto& [id, answer] : a.of) count += !b.of.contains(id) || b.of.at(id) != answer;
  return count;
}

TEST(Identity, NoDrafterChangesABitOfAnyAnswer) {
  const std::string models = INVAR_SOURCE_DIR "/models/";
  const ModelOptions options{.model = models + "story",
                             .device = device(),
                             .threads = is_full() ? 1 : 2,
                             .mtp_module = true};
  Model model(options);
  const Answers plain = answers(model, "");
  ASSERT_EQ(std::ssize(plain.of), prompts());
  if (device() != "cpu") {
    Model host({.model = options.model, .threads = options.threads});
    EXPECT_EQ(differences(plain, answers(host, "")), 0) << "plain, beside the CPU";
  }
  std::vector<std::string> all = configs(models);
  std::optional<Made> made;  // what it drafts for short answers is tested elsewhere
  if (is_long())
    for (const std::string& config : configs(made.emplace(model))) all.push_back(config);
  int64_t accepted = 0;
  std::erase_if(all, [](const std::string& config) { return !is_wanted(config); });
  for (const std::string& config : all) {
    const Answers drafted = answers(model, config);
    EXPECT_EQ(std::ssize(drafted.of), prompts()) << config;
    EXPECT_EQ(differences(plain, drafted), 0) << config;
    accepted += drafted.accepted;
    if (is_long())
      std::cout << differences(plain, drafted) << " of " << prompts() << " answers differ, "
                << drafted.accepted << " drafts accepted: " << config << std::endl;
  }
  EXPECT_GT(accepted, 0) << "the drafts were used";
  // The control: the comparison sees another seed.
  EXPECT_GT(differences(plain, answers(model, "", 1)), 0);
}

// Windows, two rotations, norms behind a part, of whole queries: a family's layer is a drafter's,
// too.
TEST(Identity, DraftersOfOtherFamilies) {
  const std::string families = INVAR_SOURCE_DIR "/tests/families/tiny_configs.json";
  const json::Value shapes = json::parse(read_whole_file(families, 1 << 20), families);
  for (const char* family : {"gemma3_text", "olmo2"}) {
    const std::string directory =
        testing::TempDir() + "identity_" + family + std::to_string(getpid());
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/config.json") << json::dump(*shapes.find(family));
    Model model({.model = directory, .load_format = "dummy:1", .device = device(), .threads = 2});
    std::vector<std::string> all = {
        R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})",
        R"({"method":"suffix"})",
        R"({"method":"lookahead"})",
        R"({"method":"draft_model","model":"dummy:1","num_speculative_tokens":4})",
        R"({"method":"early_exit","num_speculative_tokens":3})",
        R"({"method":"swift","skip_layers":[1]})"};
    const Made made(model);
    for (const std::string& config : configs(made)) all.push_back(config);
    const Answers plain = answers(model, "");
    std::map<std::string, int64_t> accepted;
    for (const std::string& config : all) {
      const Answers drafted = answers(model, config);
      EXPECT_EQ(std::ssize(drafted.of), prompts()) << family << " " << config;
      EXPECT_EQ(differences(plain, drafted), 0) << family << " " << config;
      accepted[config] = drafted.accepted;
    }
    EXPECT_GT(accepted.at(all[3]), 0) << family << ": a drafter that is the target";
    EXPECT_GT(differences(plain, answers(model, "", 1)), 0) << "the control: another seed";
    std::filesystem::remove_all(directory);
  }
}

// Layers with states: the target's go back where drafts are refused, and a draft model's never have
// to, also where its drafts are a tree, which is computed once more at each level. Answers are long
// enough that both move. A draft model that is the target is right in all that a chain says; it is
// in the same of a tree, whose side branches are drafted and computed to their ends.
TEST(Identity, DraftersOfModelsWithStates) {
  constexpr int kTokens = 60;
  const std::string tree =
      "[(0,),(0,0),(0,0,0),(0,0,0,0),(0,0,0,0,0),(1,),(1,0),(0,1),(0,1,0),(0,0,1),(2,)]";
  const std::string families = INVAR_SOURCE_DIR "/tests/families/tiny_hybrid_configs.json";
  const json::Value shapes = json::parse(read_whole_file(families, 1 << 20), families);
  for (const char* family : {"qwen3_5_text", "lfm2", "granitemoehybrid"}) {
    const std::string directory =
        testing::TempDir() + "identity_" + family + std::to_string(getpid());
    std::filesystem::create_directories(directory);
    const bool has_module = std::string(family) == "qwen3_5_text";
    std::ofstream(directory + "/config.json") << json::dump(*shapes.find(family));
    Model model({.model = directory,
                 .load_format = "dummy:1",
                 .device = device(),
                 .threads = 2,
                 .mtp_module = has_module});
    std::vector<std::string> all = {
        R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})",
        R"({"method":"draft_model","model":"dummy:1","num_speculative_tokens":5})",
        R"({"method":"draft_model","model":"dummy:1","speculative_token_tree":")" + tree + "\"}",
        R"({"method":"draft_model","model":"dummy:77","num_speculative_tokens":3})",
        R"({"method":"draft_model","model":"dummy:77","speculative_token_tree":")" + tree + "\"}"};
    if (has_module) all.push_back(R"({"method":"mtp","num_speculative_tokens":3})");
    const Answers plain = answers(model, "", 0, kTokens);
    std::map<std::string, int64_t> accepted;
    std::map<std::string, int> nodes;
    for (const std::string& config : all) {
      const Answers drafted = answers(model, config, 0, kTokens);
      EXPECT_EQ(std::ssize(drafted.of), prompts()) << family << " " << config;
      EXPECT_EQ(differences(plain, drafted), 0) << family << " " << config;
      accepted[config] = drafted.accepted;
      nodes[config] = drafted.nodes;
    }
    EXPECT_GT(accepted.at(all[1]), 0) << family << ": a drafter that is the target";
    EXPECT_GE(accepted.at(all[2]), accepted.at(all[1])) << family << ": and its trees";
    EXPECT_GT(nodes.at(all[2]), 9) << family << ": more than trunks and the tokens beside them";
    EXPECT_GT(differences(plain, answers(model, "", 1, kTokens)), 0) << "the control: another seed";
    std::filesystem::remove_all(directory);
  }
}

}  // namespace
}  // namespace invar
