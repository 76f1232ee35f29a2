// Drafters that compute: whatever they draft, answers are those of plain decoding; and each drafts
// what it should.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <map>

#include "../support/fixed_drafts.h"
#include "base/error.h"
#include "drafters/layer_search.h"
#include "drafters/make_proposer.h"
#include "engine/engine.h"
#include "model/families/make_model.h"

namespace invar {
namespace {

const std::string kModels = std::string(INVAR_SOURCE_DIR) + "/models/";

ModelOptions tiny(const char* arithmetic = "portable") {
  return {.model = "tiny", .load_format = "dummy:7", .arithmetic = arithmetic, .threads = 2};
}

ModelOptions story() {
  return {.model = kModels + "story", .threads = 2};
}

struct Record final : OutputSink {
  struct Answer {
    std::vector<int32_t> tokens;
    std::vector<Digest> hashes;
    std::vector<std::optional<TokenLogprobs>> logprobs;
    bool operator==(const Answer&) const = default;
  };
  void on_token(const TokenOutput& output) override {
    Answer& answer = answers[output.request];
    answer.tokens.push_back(output.token);
    answer.hashes.push_back(output.logits_hash);
    answer.logprobs.push_back(output.logprobs);
  }
  std::map<int64_t, Answer> answers;
};

// Greedy, sampled, filtered, penalised, with a word that may not come. Prompts are beginnings of a
// text, or nonsense.
std::vector<Request> requests(const std::vector<int32_t>& text) {
  std::vector<Request> all;
  for (int id = 1; id <= 6; ++id) {
    Request r{.id = id};
    for (int i = 0; i < 5 + 31 * (id % 4); ++i)
      r.prompt.edit().push_back(text.empty() ? (5 + i * 7 + id) % 512 : text[i]);
    r.params.max_tokens = 30;
    r.params.seed = static_cast<uint64_t>(id);
    r.params.temperature = id == 1 ? 0.0 : 0.8;
    if (id == 2) r.params.top_p = 0.95;
    if (id == 3) r.params.top_k = 40;
    if (id == 4) r.params.repetition_penalty = 1.3;
    if (id == 4) r.params.frequency_penalty = 0.2;
    if (id == 5) r.params.bad_words = {{3, 4}};
    if (id == 6) r.choice = 2;
    if (id % 2) r.params.logprobs = 1;
    all.push_back(std::move(r));
  }
  return all;
}

struct Result {
  std::map<int64_t, Record::Answer> answers;
  int64_t drafts = 0, draft_tokens = 0, accepted = 0;
};

EngineOptions engine_options() {
  EngineOptions options{.block_size = 32, .kv_bytes = 16 << 20};
  options.scheduler.max_model_len = 256;
  options.scheduler.max_num_seqs = 8;
  return options;
}

Result run(Model& model, std::unique_ptr<Proposer> proposer, int rounds = 1,
           const std::vector<int32_t>& text = {}) {
  Result result;
  Record record;
  Engine engine(model, engine_options(), nullptr, std::move(proposer));
  for (int round = 0; round < rounds; ++round) {
    record.answers.clear();
    for (Request& request : requests(text)) engine.add(std::move(request));
    while (engine.step(record)) {
      const StepStats& step = engine.last_step();
      result.drafts += step.drafts;
      result.draft_tokens += step.draft_tokens;
      result.accepted += step.accepted_tokens;
    }
    EXPECT_EQ(engine.check_integrity(), "");
  }
  result.answers = record.answers;
  return result;
}

Result drafted(Model& model, const std::string& config, DrafterRoom room = {.max_sequences = 8}) {
  return run(model, make_proposer(fixed_drafts(config), model, room));
}

constexpr const char* kTree = "[(0,),(0,0),(0,1),(1,),(1,0),(0,0,0),(2,)]";

TEST(Drafters, NoneShowsInAnAnswer) {
  Model model(tiny());
  const auto plain = run(model, nullptr).answers;
  ASSERT_EQ(plain.size(), 6);
  const std::string tree = kTree;
  for (const std::string& config : {
           std::string(R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})"),
           std::string(R"({"method":"suffix"})"),
           std::string(R"({"method":"lookahead"})"),
           std::string(R"({"method":"lookahead","lookahead_window":0,"lookahead_ngram":3})"),
           std::string(R"({"method":"draft_model","model":"dummy:8"})"),
           R"({"method":"draft_model","model":"dummy:7","speculative_token_tree":")" + tree + "\"}",
           R"({"method":"draft_model","model":"dummy:9","speculative_token_tree":")" + tree + "\"}",
           std::string(R"({"method":"early_exit","num_speculative_tokens":5})"),
           std::string(R"({"method":"swift"})"),
           R"({"method":"swift","skip_layers":[2],"speculative_token_tree":")" + tree + "\"}",
           R"({"method":"early_exit","exit_layer":1,"speculative_token_tree":")" + tree + "\"}",
       })
    EXPECT_EQ(drafted(model, config).answers, plain) << config;
}

// The control: where rows depend on their neighbours, drafts show.
TEST(Drafters, UnderTheBaselineTheyShow) {
  Model model(tiny("control"));
  const auto plain = run(model, nullptr).answers;
  EXPECT_NE(drafted(model, R"({"method":"draft_model","model":"dummy:8"})").answers, plain);
}

// A drafter whose distribution is the target's proposes the target's own samples, whatever the
// parameters: the noise is the same. The first draft of a sequence may come later than its first
// token, and its last ones are cut by max_tokens.
TEST(Drafters, TheTargetItselfIsNeverWrong) {
  Model model(tiny());
  const Result same = drafted(model, R"({"method":"draft_model","model":"dummy:7"})");
  EXPECT_EQ(same.accepted, same.draft_tokens);
  EXPECT_GT(same.accepted, 6 * 20);
  // The control: other weights are often wrong.
  const Result other = drafted(model, R"({"method":"draft_model","model":"dummy:8"})");
  EXPECT_LT(other.accepted, other.draft_tokens / 2);
}

// The target's weights, but for a layer that adds nothing to the residual stream.
class WithIdleLayer final : public TensorSource {
 public:
  WithIdleLayer(const DecoderSpec& spec, int layer)
      : base_(dummy_weights(spec, 7)), layer_("model.layers." + std::to_string(layer) + ".") {}
  const std::vector<std::string>& names() const override { return base_->names(); }
  bool has(std::string_view name) const override { return base_->has(name); }
  const TensorInfo& info(std::string_view name) const override { return base_->info(name); }
  std::string where(std::string_view name) const override { return base_->where(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    base_->read(name, first, count, as, out);
    if (name == layer_ + "self_attn.o_proj.weight" || name == layer_ + "mlp.down_proj.weight")
      std::memset(out, 0, static_cast<size_t>(count * size_of(as)));
  }

 private:
  std::unique_ptr<TensorSource> base_;
  const std::string layer_;
};

// Skipping it, the target drafts as it answers; and the search finds it.
TEST(Drafters, ALayerThatDoesNothingIsSkippedAtNoLoss) {
  ModelOptions staged = tiny();
  staged.layer_cuts = {1, 2};
  for (const ModelOptions& options : {tiny(), staged}) {
    Model model(options);
    model.reload(WithIdleLayer(model.spec(), 2));
    const Result idle = drafted(model, R"({"method":"swift","skip_layers":[2]})");
    EXPECT_EQ(idle.accepted, idle.draft_tokens);
    EXPECT_GT(idle.accepted, 6 * 20);
    const std::vector<int> found = search_layers_to_skip(model);
    EXPECT_EQ(std::ranges::count(found, 2), 1);
    // The control: another layer is missed.
    const Result other = drafted(model, R"({"method":"swift","skip_layers":[1]})");
    EXPECT_LT(other.accepted, other.draft_tokens);
  }
}

TEST(Drafters, LittleRoomMeansFewerDrafts) {
  Model model(tiny());
  const auto plain = run(model, nullptr).answers;
  const std::string config = R"({"method":"draft_model","model":"dummy:7"})";
  const Result roomy = drafted(model, config);
  // Blocks of the longest sequence alone; known tokens a few at a time.
  const Result tight =
      drafted(model, config, {.max_sequences = 8, .kv_bytes = 1, .catch_up_rows = 16});
  EXPECT_EQ(tight.answers, plain);
  EXPECT_EQ(tight.accepted, tight.draft_tokens);
  EXPECT_LT(tight.drafts, roomy.drafts);
  EXPECT_GT(tight.drafts, 0);
}

// What the bundled model tells after "Once upon a time".
std::vector<int32_t> told_story(Model& model) {
  Record record;
  Engine engine(model, engine_options());
  Request request{.id = 1, .prompt = {734, 1039, 258, 581}};
  request.params.max_tokens = 120;
  request.params.temperature = 0;
  engine.add(request);
  while (engine.step(record)) {
  }
  std::vector<int32_t> text = record.answers[1].tokens;
  text.insert(text.begin(), request.prompt.begin(), request.prompt.end());
  return text;
}

TEST(Drafters, OfTheBundledModelAreOftenRight) {
  Model model(with_drafter(story(), fixed_drafts(R"({"method":"mtp"})")));
  const std::vector<int32_t> text = told_story(model);
  const auto plain = run(model, nullptr, 1, text).answers;
  Model without(story());  // its module not loaded
  EXPECT_EQ(run(without, nullptr, 1, text).answers, plain);
  const auto share = [&](const std::string& config, int rounds = 1) {
    auto proposer = make_proposer(fixed_drafts(config), model, {.max_sequences = 8});
    const Result with = run(model, std::move(proposer), rounds, text);
    EXPECT_EQ(with.answers, plain) << config;
    const double share =
        static_cast<double>(with.accepted) / static_cast<double>(with.draft_tokens);
    std::cout << config << ": " << share << " of the drafts are accepted\n";
    return share;
  };
  EXPECT_GT(share(R"({"method":"mtp","num_speculative_tokens":1})"), 0.6);
  // The second round finds its prompts in the prefix cache, and the module has no history of them.
  const std::string four = R"({"method":"mtp","num_speculative_tokens":4})";
  const double with_history = share(four), with_less = share(four, 2);
  EXPECT_GT(with_history, 0.75);
  EXPECT_GT(with_less, 0.3);
  EXPECT_GT(with_history, with_less);
  EXPECT_GT(share(R"({"method":"early_exit","num_speculative_tokens":3})"), 0.5);
  EXPECT_GT(share(R"({"method":"swift","num_speculative_tokens":3})"), 0.2);
  EXPECT_GT(share(R"({"model":")" + kModels + R"(draft","num_speculative_tokens":3})"), 0.25);
}

TEST(Drafters, PartsThatDoNotFitAreRefused) {
  Model model(tiny());
  const auto refusal = [&](const std::string& config) -> std::string {
    try {
      make_proposer(fixed_drafts(config), model, {.max_sequences = 2});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      refusal(R"({"method":"mtp"})"),
      "the method mtp drafts by the target's module of multi-token prediction, and tiny has "
      "none (num_nextn_predict_layers or mtp_num_hidden_layers in config.json, and its tensors)");
  EXPECT_EQ(refusal(R"({"method":"early_exit","exit_layer":99})"),
            "expected an exit_layer from 1 to " + std::to_string(model.spec().layers - 1) +
                ", one before the target's last, found 99");
  EXPECT_EQ(refusal(R"({"method":"swift","skip_layers":[1,3]})"),
            "expected skip_layers from 1 to 2, before the target's last, found 3");
  EXPECT_EQ(refusal(R"({"model":")" + kModels + R"(draft"})"),
            "expected a drafter of the target's vocabulary of 512 tokens, found 4096 in " +
                kModels + "draft");
}

}  // namespace
}  // namespace invar
