// Side branches of a draft model whose layers have states, in trees that are turned so that what it
// finds likeliest stands beside the trunk.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/input_file.h"
#include "base/json.h"
#include "drafters/model_drafter.h"
#include "engine/engine.h"
#include "speculative/forwarding_proposer.h"

namespace invar {
namespace {

enum class Way { plain, as_drafted, turned, trunk_alone };

// The first root's tree, with the other roots' before it.
DraftTree turned(const DraftTree& tree) {
  std::vector<int32_t> root, place(tree.size());
  for (int32_t i = 0; i < std::ssize(tree); ++i)
    root.push_back(tree[i].parent < 0 ? i : root[tree[i].parent]);
  DraftTree to;
  for (const bool is_first : {false, true})
    for (int32_t i = 0; i < std::ssize(tree); ++i) {
      if ((root[i] == 0) != is_first) continue;
      place[i] = static_cast<int32_t>(to.size());
      to.push_back({tree[i].token, tree[i].parent < 0 ? -1 : place[tree[i].parent]});
    }
  return to;
}

class Turning final : public ForwardingProposer {
 public:
  Turning(std::unique_ptr<Proposer> inner, Way way)
      : ForwardingProposer(std::move(inner)), way_(way) {}

  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    inner().propose(requests, trees);
    if (way_ == Way::as_drafted) return;
    for (DraftTree& tree : trees) {
      tree = turned(tree);
      if (way_ == Way::trunk_alone) tree.resize(static_cast<size_t>(trunk_size(tree)));
    }
  }

 private:
  const Way way_;
};

struct Told final : OutputSink {
  void on_token(const TokenOutput& output) override {
    if (output.has_token()) tokens[output.request].push_back(output.token);
    hashes[output.request].push_back(output.logits_hash);
  }
  std::map<int64_t, std::vector<int32_t>> tokens;
  std::map<int64_t, std::vector<Digest>> hashes;
};

struct Result {
  Told told;
  int64_t accepted = 0;
  int64_t drafts = 0, begun_right = 0;  // trees, and those of which a first token was right
};

// Three answers over two boundaries.
Result tell(Model& model, const std::shared_ptr<Model>& drafter, Way way,
            DrafterRoom room = {.max_sequences = 4}) {
  EngineOptions options{.kv_bytes = 64 << 20};
  options.scheduler.max_num_seqs = 4;
  options.scheduler.max_model_len = 256;
  std::unique_ptr<Proposer> proposer;
  const TreeShape shape = shape_of_paths({{0}, {0, 0}, {0, 0, 0}, {1}, {1, 0}});
  if (way != Way::plain)
    proposer = std::make_unique<Turning>(
        std::make_unique<ModelDrafter>(drafter, ModelDrafterOptions{.shape = shape, .room = room}),
        way);
  Engine engine(model, options, nullptr, std::move(proposer));
  Result result;
  for (int id = 0; id < 3; ++id) {
    Request request{.id = id, .prompt = {5, 17 + id, 29, 31}, .hash_logits = true};
    request.params.max_tokens = 140;
    request.params.temperature = id == 0 ? 0 : 0.8;
    engine.add(request);
  }
  for (bool goes_on = true; goes_on;) {
    goes_on = engine.step(result.told);
    const StepStats& step = engine.last_step();
    result.accepted += step.accepted_tokens;
    result.drafts += step.drafts;
    if (!step.accepted_at.empty()) result.begun_right += step.accepted_at[0];
  }
  return result;
}

TEST(SideBranches, OfModelsWithStatesAreAccepted) {
  const std::string families = INVAR_SOURCE_DIR "/tests/families/tiny_hybrid_configs.json";
  const json::Value shapes = json::parse(read_whole_file(families, 1 << 20), families);
  for (const char* family : {"qwen3_5_text", "lfm2", "granitemoehybrid"}) {
    SCOPED_TRACE(family);
    const std::string directory = testing::TempDir() + "side_" + family + std::to_string(getpid());
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/config.json") << json::dump(*shapes.find(family));
    const ModelOptions options{.model = directory, .load_format = "dummy:1", .threads = 2};
    Model model(options);
    const auto drafter = std::make_shared<Model>(options);
    const Result plain = tell(model, drafter, Way::plain);
    const Result drafted = tell(model, drafter, Way::as_drafted);
    const Result beside = tell(model, drafter, Way::turned);
    for (const Result* other : {&drafted, &beside}) {
      EXPECT_EQ(other->told.tokens, plain.told.tokens);
      EXPECT_EQ(other->told.hashes, plain.told.hashes);
    }
    // The drafter is the target: all that it finds likeliest is right, wherever it stands.
    EXPECT_GT(drafted.accepted, 200);
    EXPECT_EQ(beside.accepted, drafted.accepted);
    // The control: without what stands beside the trunk little is.
    EXPECT_LT(tell(model, drafter, Way::trunk_alone).accepted, drafted.accepted / 4);
    std::printf("%s: %ld accepted, turned %ld\n", family, long(drafted.accepted),
                long(beside.accepted));
    // Where there are no blocks for a tree's tails, no row counts that was not computed.
    const Result tight =
        tell(model, drafter, Way::as_drafted, {.max_sequences = 4, .context = 256, .kv_bytes = 1});
    EXPECT_EQ(tight.told.tokens, plain.told.tokens);
    EXPECT_LT(tight.accepted, drafted.accepted);
    EXPECT_GT(tight.drafts, 20);
    EXPECT_EQ(tight.begun_right, tight.drafts);
    std::filesystem::remove_all(directory);
  }
}

}  // namespace
}  // namespace invar
