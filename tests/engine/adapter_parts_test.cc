// Adapters beside heads with a state, short convolutions and experts: the bits of a request depend
// on its own adapter and on nothing else.
#include <gtest/gtest.h>

#include <filesystem>

#include "../support/adapter_files.h"
#include "../weights/model_files.h"
#include "answers.h"
#include "model/adapter_weights.h"
#include "model/families/presets.h"
#include "speculative/prompt_lookup.h"
#include "weights/lora_adapter.h"

namespace invar {
namespace {

using testing_engine::Record;

constexpr int kAdapters = 3;  // and requests with none

// A made model with adapters beside every matrix that can have one.
class AdaptedModel {
 public:
  explicit AdaptedModel(const char* family) {
    const bool has_experts = std::string(family) == "qwen3_moe";
    DecoderSpec spec = preset_spec(has_experts ? "tiny-moe" : "tiny");
    if (!has_experts) spec = override_spec(spec, {.family = family, .layers = 4});
    ThreadPool pool(2);
    make_model(path("model"), {spec, {}, {}}, 7, pool);
    std::vector<testing_adapter::Module> modules;
    for (const AdapterModule& module : adaptable_modules(spec, AdapterUser::cpu))
      modules.push_back({module.name, module.outputs, module.inputs});
    for (int i = 0; i < kAdapters; ++i) {
      const std::string to = path(std::to_string(i));
      testing_adapter::write(
          to, modules, {.seed = 1 + static_cast<uint32_t>(i), .rank = 3 + 9 * i, .size = 0.1F});
      const LoraAdapter read(to);
      adapters_.push_back(std::make_shared<const RequestAdapter>(
          RequestAdapter{to, to, static_cast<int32_t>(read.most_rank()), read.digest(pool)}));
    }
  }

  ModelOptions options() const {
    return {.model = path("model"), .load_format = "auto", .threads = 2};
  }
  static EngineOptions engine() {
    EngineOptions options{
        .block_size = 32, .kv_bytes = 64 << 20, .adapters = {.most = 4, .most_rank = 32}};
    options.scheduler.max_model_len = 256;
    options.scheduler.max_num_seqs = 8;
    return options;
  }
  Request request(int64_t id, int number) const {
    Request r;
    r.id = id;
    for (int i = 0; i < 70; ++i) r.prompt.edit().push_back((5 + i * 7) % 500);
    r.params.max_tokens = 12;
    r.params.temperature = 0.8;
    r.params.seed = 11;
    if (number < kAdapters) r.adapter = adapters_[static_cast<size_t>(number)];
    return r;
  }
  // One after the other, of whole prompts.
  std::vector<Record::Answer> alone(Model& model) const {
    std::vector<Record::Answer> answers;
    for (int number = 0; number <= kAdapters; ++number) {
      Engine engine(model, AdaptedModel::engine());
      Record record;
      engine.add(request(1, number));
      while (engine.has_work()) EXPECT_TRUE(engine.step(record));
      answers.push_back(record.answers[1]);
    }
    for (size_t i = 0; i < answers.size(); ++i)  // the control
      for (size_t j = 0; j < i; ++j) EXPECT_NE(answers[i].hashes, answers[j].hashes);
    return answers;
  }
  void expect_same(Engine& engine, const std::vector<Record::Answer>& expected) const {
    Record record;
    for (int round = 0; round < 2; ++round)
      for (int number = 0; number <= kAdapters; ++number)
        engine.add(request(10 * round + number, number));
    while (engine.has_work()) ASSERT_TRUE(engine.step(record));
    EXPECT_EQ(engine.check_integrity(), "");
    for (const auto& [id, answer] : record.answers)
      EXPECT_EQ(answer, expected[static_cast<size_t>(id % 10)]) << id;
    EXPECT_EQ(record.answers.size(), 2U * (kAdapters + 1));
  }

 private:
  std::string path(const std::string& name) const {
    return (std::filesystem::path(directory_.path()) / name).string();
  }
  TempDirectory directory_;
  std::vector<std::shared_ptr<const RequestAdapter>> adapters_;
};

class AdapterParts : public ::testing::TestWithParam<const char*> {};

TEST_P(AdapterParts, AreTheSameInEveryCut) {
  const AdaptedModel made(GetParam());
  Model model(made.options());
  const auto expected = made.alone(model);
  {
    SCOPED_TRACE("among others");
    Engine engine(model, AdaptedModel::engine());
    made.expect_same(engine, expected);
  }
  {
    SCOPED_TRACE("in pieces, two at a time, a slot for one");
    EngineOptions few = AdaptedModel::engine();
    few.step_rows = few.scheduler.max_num_batched_tokens = 66;
    few.scheduler.max_num_seqs = 2;
    few.adapters.most = 1;
    Engine engine(model, few);
    made.expect_same(engine, expected);
  }
  {
    SCOPED_TRACE("with drafts");
    Engine engine(model, AdaptedModel::engine(), nullptr,
                  std::make_unique<PromptLookup>(PromptLookupOptions{}));
    made.expect_same(engine, expected);
  }
}

TEST_P(AdapterParts, AreTheSameOnRanksAndSets) {
  const AdaptedModel made(GetParam());
  Model model(made.options());
  const auto expected = made.alone(model);
  for (const auto& [ranks, set] : {std::pair{2, "auto"}, std::pair{1, "scalar"}}) {
    ModelOptions other = made.options();
    other.ranks = ranks;
    other.executor = "threads";
    other.instruction_set = set;
    Model same(other);
    Engine engine(same, AdaptedModel::engine());
    made.expect_same(engine, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterParts,
                         ::testing::Values("qwen3_next", "qwen3_5_text", "nemotron_h",
                                           "kimi_linear", "lfm2", "qwen3_moe"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace invar
