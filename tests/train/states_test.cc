// A trainer and a sampler of models whose layers have states, latents, or experts behind every kind
// of router that is trained, say the same of every token of an answer, over the boundaries at which
// states move.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "engine/model_description.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/trained_source.h"
#include "train/rl/packing.h"
#include "train/rl/rollouts.h"
#include "train/trainer.h"

namespace invar::rl {
namespace {

constexpr int kContext = 224, kAnswerTokens = 40;

// A directory with the configuration of a small model.
class ModelDirectory {
 public:
  ModelDirectory(const char* family, int layers)
      : path_(std::filesystem::temp_directory_path() /
              ("invar-states-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
    const DecoderSpec spec = override_spec(
        preset_spec("tiny"), {.family = family, .hidden = 64, .layers = layers, .heads = 4});
    write_model_texts(path_.string(), {.spec = spec}, {});
  }
  ~ModelDirectory() { std::filesystem::remove_all(path_); }
  ModelOptions options() const {
    return {.model = path_.string(), .load_format = "dummy:1", .threads = 2};
  }

 private:
  const std::filesystem::path path_;
};

// Prompts that end before, at and behind boundaries.
std::vector<Question> questions() {
  std::vector<Question> questions;
  for (const int size : {3, 40, 63, 64, 65, 100, 127, 128, 150, 180}) {
    Question question{.seed = static_cast<uint64_t>(size)};
    for (int t = 0; t < size; ++t) question.prompt.push_back((size * 31 + t * t * 7) % 500);
    questions.push_back(std::move(question));
  }
  return questions;
}

std::vector<PackedRow> rows_of_step(int step) {
  std::vector<PackedRow> rows(4, {.begins = {0, 90}});
  for (size_t row = 0; row < rows.size(); ++row)
    for (int t = 0; t < kContext; ++t) {
      const int token = step * 13 + static_cast<int>(row) * 7 + t * 3;
      rows[row].tokens.push_back(token % 500);
      rows[row].targets.push_back((token + 3) % 500);
      rows[row].weights.push_back(1);
    }
  return rows;
}

TrainerOptions trainer_options(const ModelOptions& model) {
  TrainerOptions options;
  options.model = read_model_config(model);
  options.context = kContext;
  options.rows = options.batch_rows = 4;
  options.groups = 2;
  options.optimizer = {.rate = 1e-3, .warmup = 1, .steps = 10};
  options.threads = 2;
  return options;
}

int64_t differences(Trainer& trainer, const std::vector<Question>& questions,
                    const std::vector<Answer>& answers) {
  std::vector<const std::vector<int32_t>*> prompts, tokens;
  for (const Question& question : questions) prompts.push_back(&question.prompt);
  for (const Answer& answer : answers) tokens.push_back(&answer.tokens);
  const PackedAnswers packed = pack_answers(prompts, tokens, kContext, 2, 0);
  const std::vector<float> trained = trainer.log_probabilities(packed.rows);
  int64_t different = 0;
  for (size_t i = 0; i < answers.size(); ++i)
    for (int t = 0; t < packed.places[i].tokens; ++t)
      different += trained[packed.places[i].index(kContext) + t] != answers[i].log_probabilities[t];
  return different;
}

TEST(StatesOfATrainer, AreThoseOfASampler) {
  for (const auto& [family, layers] : {std::pair{"lfm2", 4},
                                       {"qwen3_5_text", 4},
                                       {"olmo_hybrid", 4},
                                       {"kimi_linear", 4},
                                       {"deepseek_v2", 2},
                                       {"deepseek_v3", 2},
                                       {"glm4_moe_lite", 2},
                                       {"mistral4", 2},
                                       {"qwen3_next", 4},
                                       {"lfm2_moe", 4},
                                       {"qwen2_moe", 2},
                                       {"glm4_moe", 3},
                                       {"minimax_m2", 2}}) {
    const ModelDirectory directory(family, layers);
    const TrainerOptions options = trainer_options(directory.options());
    Trainer trainer(options, 7);
    for (int step = 0; step < 2; ++step) trainer.step(rows_of_step(step));
    EngineOptions engine;
    engine.scheduler.max_model_len = kContext;
    engine.scheduler.max_num_seqs = 8;
    engine.kv_bytes = 64 << 20;
    Rollouts sampler({.model = directory.options(), .engine = engine},
                     {.max_tokens = kAnswerTokens});
    const auto form = decoder_form(options.model.spec, trainer.weights());
    sampler.take_weights(form ? *form : trainer.weights());
    const std::vector<Question> asked = questions();
    const std::vector<Answer> answers = sampler.answer(asked, 2);
    EXPECT_EQ(differences(trainer, asked, answers), 0) << family;
    // The control: a step later the trainer says something else.
    trainer.step(rows_of_step(2));
    EXPECT_GT(differences(trainer, asked, answers), 0) << family;
  }
}

}  // namespace
}  // namespace invar::rl
