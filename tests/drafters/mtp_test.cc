// The module of multi-token prediction drafts row by row, beside the target, what it computes over
// the whole text at once.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>

#include "drafters/mtp_drafter.h"
#include "engine/engine.h"
#include "speculative/forwarding_proposer.h"

namespace invar {
namespace {

ModelOptions story() {
  return {.model = INVAR_SOURCE_DIR "/models/story", .threads = 2, .mtp_module = true};
}

// A small model of random weights as Qwen publishes them: layers with states, and a module that
// reads hidden states behind the final norm.
class Hybrid {
 public:
  Hybrid() {
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ + "/config.json") << R"({"architectures": ["Qwen3_5ForCausalLM"],
      "model_type": "qwen3_5_text", "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
      "max_position_embeddings": 512, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "linear_key_head_dim": 16, "linear_value_head_dim": 24, "mtp_num_hidden_layers": 1,
      "rms_norm_eps": 1e-06})";
  }
  ~Hybrid() { std::filesystem::remove_all(directory_); }
  ModelOptions options() const {
    return {.model = directory_, .load_format = "dummy:3", .threads = 2, .mtp_module = true};
  }

 private:
  const std::string directory_ = testing::TempDir() + "mtp_test_" + std::to_string(getpid());
};

// Writes down the first token of every draft, by the number of tokens known.
class Spy final : public ForwardingProposer {
 public:
  Spy(std::unique_ptr<Proposer> inner, std::map<size_t, int32_t>& drafts, size_t skipped_steps)
      : ForwardingProposer(std::move(inner)), drafts_(drafts), skipped_steps_(skipped_steps) {}

  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    if (requests.empty() || steps_++ < skipped_steps_) return;
    inner().propose(requests, trees);
    if (!trees[0].empty()) drafts_[requests[0].tokens.size()] = trees[0][0].token;
  }

 private:
  std::map<size_t, int32_t>& drafts_;
  const size_t skipped_steps_;
  size_t steps_ = 0;
};

struct Told final : OutputSink {
  void on_token(const TokenOutput& output) override { tokens.push_back(output.token); }
  std::vector<int32_t> tokens;
};

// A story with its beginning. `drafts`: the first token of each draft on the way, from the step on
// that `skipped_steps` says.
std::vector<int32_t> tell(Model& model, int32_t tokens, std::map<size_t, int32_t>& drafts,
                          size_t skipped_steps = 0) {
  EngineOptions options{.kv_bytes = 16 << 20};
  options.scheduler.max_num_seqs = 4;
  options.scheduler.max_model_len = 256;
  const MtpDrafterOptions mtp{.num_speculative_tokens = tokens, .room = {.max_sequences = 1}};
  Engine engine(
      model, options, nullptr,
      std::make_unique<Spy>(std::make_unique<MtpDrafter>(model, mtp), drafts, skipped_steps));
  Request request{.id = 1, .prompt = {734, 1039, 258, 581}};
  std::vector<int32_t> text = request.prompt;
  request.params.max_tokens = 150;
  request.params.temperature = 0;
  engine.add(std::move(request));
  Told told;
  while (engine.step(told)) {
  }
  text.insert(text.end(), told.tokens.begin(), told.tokens.end());
  return text;
}

// rows[i]: a token at position i of one sequence.
Batch batch_of(std::span<const int32_t> tokens) {
  Batch batch;
  batch.sequences = {{.cell = 0}};
  batch.sequences[0].blocks.resize(tokens.size() / 64 + 1);
  std::iota(batch.sequences[0].blocks.begin(), batch.sequences[0].blocks.end(), 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    batch.rows.push_back({.token = tokens[i], .position = static_cast<int32_t>(i), .sequence = 0});
  return batch;
}

// What the module says after token i + 1 of a text, for every i.
std::vector<int32_t> said_at_once(Model& model, std::span<const int32_t> text,
                                  bool reads_output = false) {
  const RunnerLimits limits{.blocks = 8,
                            .block_size = 64,
                            .max_rows = 256,
                            .max_logit_rows = 256,
                            .max_aux_layers = 1,
                            .cells = 1};
  Executor target(model, limits);
  Batch batch = batch_of(text.first(text.size() - 1));
  batch.aux_layers = {model.spec().layers - 1};
  batch.logit_rows = {0};
  ForwardIo io;
  target.run(batch, io);
  std::vector<float> hidden(io.aux_hidden.begin(), io.aux_hidden.end());
  if (reads_output) norm_output(model, OutputNorm::model, io.aux_hidden, hidden);
  RunnerLimits of_module = limits;
  of_module.mtp_module = true;
  Executor module(model, of_module);
  Batch further = batch_of(text.subspan(1));
  further.layer_begin = model.spec().layers;
  further.layer_end = model.spec().layers + 1;
  further.features = hidden;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    further.rows[i].features = static_cast<int32_t>(i);
    further.logit_rows.push_back(static_cast<int32_t>(i));
  }
  ForwardIo out;
  module.run(further, out);
  std::vector<int32_t> said;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const auto row = out.logits.subspan(i * model.spec().vocab, model.spec().vocab);
    said.push_back(static_cast<int32_t>(std::ranges::max_element(row) - row.begin()));
  }
  return said;
}

TEST(MtpDrafter, DraftsWhatTheModuleSaysOfTheWholeText) {
  Model model(story());
  for (const int32_t tokens : {1, 4}) {
    std::map<size_t, int32_t> drafts;
    const std::vector<int32_t> text = tell(model, tokens, drafts);
    const std::vector<int32_t> said = said_at_once(model, text);
    EXPECT_GT(drafts.size(), 30);
    size_t right = 0;
    for (const auto& [known, token] : drafts) {
      EXPECT_EQ(token, said[known - 2]) << "behind " << known << " tokens";
      right += known < text.size() && token == text[known];
    }
    std::cout << right << " of " << drafts.size() << " first drafts of " << tokens
              << " were right\n";
    EXPECT_GT(static_cast<double>(right), 0.7 * static_cast<double>(drafts.size()));
  }
}

// Qwen's modules read what the head reads. The control: they would draft others before the norm.
TEST(MtpDrafter, OfAModelWithStatesReadsWhatTheHeadReads) {
  const Hybrid hybrid;
  Model model(hybrid.options());
  std::map<size_t, int32_t> drafts, none;
  const std::vector<int32_t> text = tell(model, 3, drafts);
  EXPECT_EQ(text, tell(model, 3, none, 1000)) << "with drafts and without";
  EXPECT_GT(drafts.size(), 100);
  const std::vector<int32_t> said = said_at_once(model, text, true);
  const std::vector<int32_t> before_norm = said_at_once(model, text);
  size_t others = 0;
  for (const auto& [known, token] : drafts) {
    EXPECT_EQ(token, said[known - 2]) << "behind " << known << " tokens";
    others += said[known - 2] != before_norm[known - 2];
  }
  EXPECT_GT(others, 0);
}

// Nobody asked for so long that it let rows go: it begins with the last ones, and says less.
TEST(MtpDrafter, GoesOnAfterStepsWithoutADraft) {
  Model model(story());
  std::map<size_t, int32_t> always, late;
  const std::vector<int32_t> text = tell(model, 1, always);
  EXPECT_EQ(tell(model, 1, late, 90), text);
  size_t right = 0;
  for (const auto& [known, token] : late) right += known < text.size() && token == text[known];
  EXPECT_GT(late.size(), 10);
  EXPECT_GT(static_cast<double>(right), 0.5 * static_cast<double>(late.size()));
}

}  // namespace
}  // namespace invar
