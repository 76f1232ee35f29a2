// Drafts by the target's first layers on the target's own keys and values, and verification that
// goes on from them: the same bits, and the layers are not computed twice.
#include "drafters/early_exit.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "../support/fixed_drafts.h"
#include "../weights/model_files.h"
#include "drafters/make_proposer.h"
#include "engine/engine.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "speculative/forwarding_proposer.h"

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
  void on_preempt(int64_t id) override { preempted.insert(id); }
  std::map<int64_t, Answer> of;
  std::set<int64_t> preempted;
  int64_t accepted = 0;
};

ModelOptions tiny() {
  return {.model = "tiny", .load_format = "dummy:7", .threads = 2};
}

int64_t block_bytes(const Model& model) {
  const DecoderSpec& spec = model.spec();
  return SequenceStore::block_bytes(states_of(spec), 32);
}

// Greedy and sampled requests of several lengths, in chunks of prompts beside the decodes.
void run(Model& model, std::unique_ptr<Proposer> proposer, Answers& answers, int64_t kv_bytes,
         bool loses_cache = false) {
  EngineOptions options{.block_size = 32, .kv_bytes = kv_bytes};
  options.scheduler.max_model_len = 192;
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_num_batched_tokens = 48;
  Engine engine(model, options, nullptr, std::move(proposer));
  for (int id = 1; id <= 6; ++id) {
    Request request{.id = id};
    for (int i = 0; i < 3 + 13 * id; ++i) request.prompt.edit().push_back((i * 11 + id) % 500);
    request.params.max_tokens = 36;
    request.params.temperature = id % 2 ? 0.0 : 0.9;
    request.params.seed = static_cast<uint64_t>(id);
    engine.add(std::move(request));
  }
  while (engine.step(answers)) {
    answers.accepted += engine.last_step().accepted_tokens;
    if (loses_cache) engine.clear_prefix_cache();
  }
  EXPECT_EQ(engine.check_integrity(), "");
}

Answers answers(Model& model, std::unique_ptr<Proposer> proposer, int64_t kv_bytes = 16 << 20) {
  Answers answers;
  run(model, std::move(proposer), answers, kv_bytes);
  return answers;
}

std::unique_ptr<Proposer> early_exit(Model& model, const std::string& more = "", int layer = 3) {
  return make_proposer(
      fixed_drafts(R"({"method":"early_exit","exit_layer":)" + std::to_string(layer) + more + "}"),
      model, {.max_sequences = 8});
}

// Tells the engine of a sequence's computed rows the first few, or other numbers in them.
class Between final : public ForwardingProposer, public LayerSharer {
 public:
  // How many of `rows` rows of a request are told.
  using Told = std::function<size_t(int64_t id, size_t rows)>;
  Between(Model& model, Told told, bool others = false)
      : ForwardingProposer(early_exit(model)),
        width_(static_cast<size_t>(model.spec().hidden)),
        told_(std::move(told)),
        others_(others) {}

  LayerSharer* layer_sharer() override { return this; }
  int32_t shared_layers() const override { return inner().layer_sharer()->shared_layers(); }
  void share(const Executor& target) override { inner().layer_sharer()->share(target); }
  ComputedRows computed_rows(int64_t id) const override {
    const ComputedRows rows = inner().layer_sharer()->computed_rows(id);
    const size_t count = told_(id, rows.hidden.size() / width_);
    if (count == 0) return {};
    const auto told = rows.hidden.first(count * width_);
    numbers_.assign(told.begin(), told.end());
    if (others_)
      for (float& x : numbers_) x = -x;
    return {.position = rows.position, .hidden = numbers_};
  }

 private:
  const size_t width_;
  const Told told_;
  const bool others_;
  mutable std::vector<float> numbers_;
};

TEST(EarlyExit, DoesNotShowInAnAnswer) {
  Model model(tiny());
  const Answers plain = answers(model, nullptr);
  const Answers drafted = answers(model, early_exit(model));
  EXPECT_EQ(drafted.of, plain.of);
  EXPECT_GT(drafted.accepted, 10);
  EXPECT_EQ(answers(model, early_exit(model, R"(,"num_speculative_tokens":9)")).of, plain.of);
  EXPECT_EQ(answers(model, early_exit(model, R"(,"adaptive":true)")).of, plain.of);
  // Eight blocks: they take each other's.
  const Answers tight = answers(model, early_exit(model), 8 * block_bytes(model));
  EXPECT_EQ(tight.of, plain.of);
  EXPECT_GT(tight.preempted.size(), 0);
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

// Layers behind the exit may read what an indexer before it chose, for rows of the draft's steps.
// `shared`: whether a family's layers do at every exit.
TEST(EarlyExit, IndexersChooseAgain) {
  for (const auto& [family, shared] :
       {std::pair<const char*, bool>{"deepseek_v32", false}, {"glm_moe_dsa", true}}) {
    DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family, .layers = 4});
    for (LayerSpec& layer : spec.layer_specs) layer.attention()->latent->indexer->most = 20;
    const TempDirectory directory;
    ThreadPool pool(2);
    make_model(directory.path(), {spec, {}, {}}, 7, pool);
    Model model({.model = directory.path(), .load_format = "auto", .threads = 2});
    const Answers plain = answers(model, nullptr);
    for (const int layer : {1, 2, 3}) {
      std::unique_ptr<Proposer> proposer = early_exit(model, "", layer);
      EXPECT_EQ(proposer->layer_sharer() == nullptr, shared) << family << " " << layer;
      EXPECT_EQ(answers(model, std::move(proposer)).of, plain.of) << family << " " << layer;
    }
  }
}

// What the drafter computed is what the step goes on from: other hidden states are other answers.
// A row without them is computed from the first layer on, beside rows of the same batch, and of the
// same sequence, that are not; nothing shows.
TEST(EarlyExit, EachRowFallsBackAlone) {
  Model model(tiny());
  const Answers plain = answers(model, nullptr);
  const auto others = [&](const Between::Told& told) {
    return answers(model, std::make_unique<Between>(model, told, true)).of;
  };
  const Between::Told all = [](int64_t, size_t rows) { return rows; };
  const Between::Told roots = [](int64_t, size_t rows) { return std::min<size_t>(rows, 1); };
  const Between::Told odd = [](int64_t id, size_t rows) { return id % 2 ? rows : 0; };
  const Between::Told none = [](int64_t, size_t) { return 0; };
  for (const Between::Told& told : {all, roots, odd, none})
    EXPECT_EQ(answers(model, std::make_unique<Between>(model, told)).of, plain.of);
  for (const Between::Told& told : {all, roots, odd}) EXPECT_NE(others(told), plain.of);
  EXPECT_EQ(others(none), plain.of);
}

// A sequence that lost its blocks takes them from the prefix cache or computes them again, in
// chunks without drafts; then its drafts are gone on from as before.
TEST(EarlyExit, GoesOnAfterAPreemption) {
  Model model(tiny());
  const Answers plain = answers(model, nullptr);
  const int64_t tight = 8 * block_bytes(model);
  Answers* drafted = nullptr;
  int64_t told_after = 0;
  const Between::Told after = [&](int64_t id, size_t rows) {
    const size_t told = drafted->preempted.contains(id) ? rows : 0;
    told_after += static_cast<int64_t>(told);
    return told;
  };
  for (const bool loses_cache : {false, true})
    for (const bool others : {false, true}) {
      Answers of_run;
      drafted = &of_run;
      told_after = 0;
      run(model, std::make_unique<Between>(model, after, others), of_run, tight, loses_cache);
      EXPECT_EQ(of_run.of == plain.of, !others);
      EXPECT_GT(of_run.preempted.size(), 0);
      EXPECT_GT(told_after, 10);
    }
}

// Trees have keys and values of their own, and verification runs all layers.
TEST(EarlyExit, TreesShareNothing) {
  Model model(tiny());
  const std::string tree = R"(,"speculative_token_tree":"[(0,),(1,),(0,0)]")";
  EXPECT_EQ(early_exit(model, tree)->layer_sharer(), nullptr);
  EXPECT_EQ(early_exit(model)->layer_sharer()->shared_layers(), 3);
  EXPECT_EQ(answers(model, early_exit(model, tree)).of, answers(model, nullptr).of);
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
