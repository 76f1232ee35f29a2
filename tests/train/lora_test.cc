// Adapters that are trained beside a frozen model: gradients against a decoder in float64, bits
// against schedules, and the sampler's bits with what is written.
#include "train/lora.h"

#include <gtest/gtest.h>

#include "../engine/answers.h"
#include "../weights/model_files.h"
#include "base/error.h"
#include "base/sha256.h"
#include "kernels/select.h"
#include "model/adapter_weights.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/stored_places.h"
#include "numerics/logits_hash.h"
#include "session/adapter.h"
#include "train/checkpoint.h"
#include "training_case.h"

namespace invar {
namespace {

// Weights of a parameter layout beside their memory.
class Weights : public ParameterSource {
 public:
  Weights(const DecoderSpec& spec, uint32_t seed)
      : Weights(ParameterLayout(spec), std::make_shared<std::vector<bf16_t>>(
                                           random_weights(ParameterLayout(spec), seed))) {}
  const std::vector<bf16_t>& numbers() const { return *numbers_; }

 private:
  Weights(const ParameterLayout& layout, const std::shared_ptr<std::vector<bf16_t>>& numbers)
      : ParameterSource(layout, numbers->data()), numbers_(numbers) {}
  std::shared_ptr<std::vector<bf16_t>> numbers_;
};

TrainerOptions options_of(const DecoderSpec& spec, int64_t rank = 5) {
  TrainerOptions options;
  options.model.spec = spec;
  options.model.spec.mtp_layers = 0;
  options.lora.base = std::make_shared<Weights>(options.model.spec, 1);
  options.lora.settings = {
      .rank = rank, .alpha = 6, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}};
  const bool has_experts = spec.layer_specs[0].experts() || spec.layer_specs.back().experts();
  if (!has_experts) options.lora.settings.targets = {"all-linear"};
  const AttentionSpec* attention = spec.layer_specs[0].attention();
  if (attention && attention->latent)
    options.lora.settings.targets = {"o_proj", "gate_proj", "up_proj", "down_proj"};
  options.context = has_states(spec) ? 96 : 32;
  options.rows = 8;
  options.groups = 4;
  options.batch_rows = 2;
  options.threads = 1;
  options.optimizer = {.rate = 1e-2, .warmup = 2, .steps = 20, .clip = 0};
  return options;
}

std::vector<PackedRow> random_rows(const TrainerOptions& options, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<PackedRow> rows(static_cast<size_t>(options.rows));
  for (PackedRow& row : rows) {
    row.begins = {0, 1 + static_cast<int32_t>(random() % 30)};
    for (int i = 0; i < options.context; ++i) {
      row.tokens.push_back(static_cast<int32_t>(random() % options.model.spec.vocab));
      row.targets.push_back(static_cast<int32_t>(random() % options.model.spec.vocab));
      row.weights.push_back(random() % 4 ? 1.0F : 0.0F);
    }
  }
  return rows;
}

// Step 0 with a B that is not zero.
TrainingState random_state(const TrainerOptions& options, uint32_t seed) {
  const ParameterLayout layout = trained_layout(options.model.spec, options.lora);
  TrainingState state;
  for (auto* array : {&state.master, &state.first, &state.second})
    array->resize(static_cast<size_t>(layout.size()));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (const ParameterLayout::Slot& slot : layout.slots())
    for (int64_t i = 0; i < slot.count; ++i)
      state.master[static_cast<size_t>(slot.offset + i)] =
          bf16_to_f32(f32_to_bf16(0.2F * normal(random)));
  return state;
}

std::string digest(const Trainer& trainer) {
  TrainingState state;
  trainer.copy_state(state);
  Sha256 sha;
  for (const auto* array : {&state.master, &state.first, &state.second})
    sha.update(std::as_bytes(std::span(*array)));
  return to_hex(sha.finish());
}

std::string train(const TrainerOptions& options, int steps = 2) {
  Trainer trainer(options, 1);
  for (int i = 0; i < steps; ++i) trainer.step(random_rows(options, static_cast<uint32_t>(i)));
  return digest(trainer);
}

std::vector<TinyModel> models() {
  std::vector<TinyModel> all;
  for (TinyModel& model : tiny_models())
    if (model.spec.mtp_layers == 0) all.push_back(std::move(model));
  for (TinyModel& model : tiny_models_of_other_norms()) all.push_back(std::move(model));
  all.push_back(tiny_models_with_latents()[1]);
  for (TinyModel& model : tiny_models_with_states())
    if (model.spec.mtp_layers == 0) all.push_back(std::move(model));
  return all;
}

class Lora : public testing::TestWithParam<TinyModel> {};

TEST_P(Lora, SchedulesDoNotShow) {
  const TrainerOptions options = options_of(GetParam().spec);
  const std::string expected = train(options);
  const auto expect_same = [&](const std::string& what, auto change) {
    TrainerOptions o = options;
    change(o);
    EXPECT_EQ(train(o), expected) << what;
  };
  expect_same("3 threads", [](TrainerOptions& o) { o.threads = 3; });
  expect_same("1 row in a batch", [](TrainerOptions& o) { o.batch_rows = 1; });
  expect_same("recomputation", [](TrainerOptions& o) { o.recompute = true; });
  expect_same("2 ranks", [](TrainerOptions& o) { o.ranks = 2; });
  expect_same("4 ranks", [](TrainerOptions& o) { o.ranks = 4; });
  for (const std::string& set : instruction_sets())
    if (is_supported(set)) expect_same(set, [&](TrainerOptions& o) { o.instruction_set = set; });
  // The controls: a step depends on its groups, its rank and the scale.
  TrainerOptions other = options;
  other.groups = 2;
  EXPECT_NE(train(other), expected);
  other = options;
  other.lora.settings.alpha = 7;
  EXPECT_NE(train(other), expected);
}

// ---- Gradients

// The model's parameters with s B A added, in float64.
std::vector<double> merged(const TrainerOptions& options, const ParameterLayout& trained,
                           const std::vector<double>& numbers) {
  const ParameterLayout layout(options.model.spec);
  const auto& base = static_cast<const Weights&>(*options.lora.base).numbers();
  std::vector<double> parameters;
  for (const bf16_t w : base) parameters.push_back(bf16_to_f32(w));
  const auto add = [&](const StoredTensor::Part& part, const double* a, const double* b,
                       int64_t rank, int64_t inputs) {
    const int64_t to = layout.offset(part.of.role, part.of.layer);
    const double scale = options.lora.settings.scale();
    for (int64_t n = 0; n < part.of.shape[0]; ++n)
      for (int64_t k = 0; k < inputs; ++k)
        for (int64_t r = 0; r < rank; ++r)
          parameters[static_cast<size_t>(to + n * inputs + k)] +=
              scale * b[(part.at.row ? part.at.row(n) : n) * rank + r] * a[r * inputs + k];
  };
  std::map<std::string, StoredTensor> stored;
  for (StoredTensor& tensor : stored_tensors(options.model.spec))
    stored[tensor.name] = std::move(tensor);
  const auto& slots = trained.slots();
  size_t slot = 0;
  for (const AdapterModule& module : lora_modules(options.model.spec, options.lora)) {
    const double* a = &numbers[static_cast<size_t>(slots[slot].offset)];
    const double* b = &numbers[static_cast<size_t>(slots[slot + 1].offset)];
    for (const StoredTensor::Part& part : stored.at(module.name + ".weight").parts)
      add(part, a, b, module.rank, module.inputs);
    slot += 2;
  }
  return parameters;
}

std::vector<Example> examples_of(const std::vector<PackedRow>& rows, double divisor) {
  std::vector<Example> examples;
  for (const PackedRow& row : rows)
    for (size_t s = 0; s < row.begins.size(); ++s) {
      const size_t end =
          s + 1 < row.begins.size() ? static_cast<size_t>(row.begins[s + 1]) : row.tokens.size();
      Example& example = examples.emplace_back();
      for (size_t i = static_cast<size_t>(row.begins[s]); i < end; ++i) {
        example.tokens.push_back(row.tokens[i]);
        example.targets.push_back(row.targets[i]);
        example.weights.push_back(row.weights[i] / divisor);
      }
    }
  return examples;
}

// How far a tensor's gradient is from the slope of the loss along it, as a part of its length.
double disagreement(const TrainerOptions& options, const ParameterLayout& layout,
                    const TrainingState& at, const std::vector<float>& gradients,
                    const ParameterLayout::Slot& slot, const std::vector<Example>& examples) {
  const ParameterLayout whole(options.model.spec);
  double length = 0;
  for (int64_t i = slot.offset; i < slot.offset + slot.count; ++i)
    length += double{gradients[static_cast<size_t>(i)]} * gradients[static_cast<size_t>(i)];
  length = std::sqrt(length);
  const auto loss = [&](double way) {
    std::vector<double> numbers(at.master.begin(), at.master.end());
    for (int64_t i = slot.offset; i < slot.offset + slot.count; ++i)
      numbers[static_cast<size_t>(i)] += way * gradients[static_cast<size_t>(i)] / length;
    return loss_f64(options.model.spec, whole, merged(options, layout, numbers), examples);
  };
  const double slope = (loss(1e-4) - loss(-1e-4)) / 2e-4;
  return std::fabs(slope / length - 1);
}

// The gradients of a first step, read off the first moments.
std::vector<float> gradients_of(const TrainerOptions& options, const TrainingState& state,
                                const std::vector<PackedRow>& rows) {
  Trainer trainer(options, state);
  trainer.step(rows);
  TrainingState after;
  trainer.copy_state(after);
  for (float& m : after.first) m /= 1 - options.optimizer.beta1;
  return after.first;
}

TEST_P(Lora, GradientsAgreeWithFiniteDifferences) {
  TrainerOptions options = options_of(GetParam().spec);
  options.rows = options.groups = options.batch_rows = 2;
  const TrainingState state = random_state(options, 3);
  const std::vector<PackedRow> rows = random_rows(options, 4);
  double divisor = 0;
  for (const PackedRow& row : rows)
    for (const float weight : row.weights) divisor += weight;
  const std::vector<Example> examples = examples_of(rows, divisor);
  const ParameterLayout layout = trained_layout(options.model.spec, options.lora);
  const std::vector<float> right = gradients_of(options, state, rows);
  TrainerOptions louder = options;
  louder.lora.settings.alpha *= 1.3;
  const std::vector<float> wrong = gradients_of(louder, state, rows);
  double worst = 0, of_other = 0;
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    const double found = disagreement(options, layout, state, right, slot, examples);
    EXPECT_LT(found, 0.03) << slot.tensor.name;
    worst = std::max(worst, found);
    // The control: gradients of an adapter of another scale.
    of_other = std::max(of_other, disagreement(options, layout, state, wrong, slot, examples));
  }
  EXPECT_GT(of_other, 0.1);
  std::printf("%s: slopes differ by up to %.4f; of another scale by up to %.4f\n", GetParam().name,
              worst, of_other);
}

INSTANTIATE_TEST_SUITE_P(Models, Lora, testing::ValuesIn(models()),
                         [](const auto& info) { return std::string(info.param.name); });

// The model's own tensors have no gradient, no moments and no place in a checkpoint.
TEST(LoraTraining, TheModelIsFrozen) {
  const TrainerOptions options = options_of(tiny_models()[0].spec, 3);
  Trainer trainer(options, 1);
  const DecoderSpec& spec = options.model.spec;
  const int64_t modules = 7 * spec.layers;
  EXPECT_EQ(std::ssize(trainer.layout().slots()), 2 * modules);
  EXPECT_EQ(std::ssize(trainer.weights().names()), 2 * modules);
  EXPECT_EQ(trainer.state().info("master").elements(), trainer.layout().size());
  int64_t numbers = 0;
  for (const AdapterModule& module : lora_modules(spec, options.lora))
    numbers += 3 * (module.inputs + module.outputs);
  EXPECT_LT(trainer.layout().size(), numbers + 16 * 2 * modules);
  EXPECT_LT(trainer.layout().size() * 3, ParameterLayout(spec).size());
}

TEST(LoraTraining, ResumesAtEveryStep) {
  const TrainerOptions options = options_of(tiny_models()[3].spec);
  const std::string expected = train(options, 3);
  TrainingState state;
  Trainer(options, 1).copy_state(state);
  for (uint32_t i = 0; i < 3; ++i) {
    Trainer trainer(options, state);
    trainer.step(random_rows(options, i));
    trainer.copy_state(state);
    if (i == 2) {
      EXPECT_EQ(digest(trainer), expected);
    }
  }
}

// ---- The sampler

constexpr int kPrompt = 60, kAnswer = 12;  // over a boundary at which states move

class SampledFamily : public testing::TestWithParam<const char*> {
 protected:
  explicit SampledFamily(const char* family = GetParam())
      : options_(options_of(override_spec(preset_spec("tiny"), {.family = family}), 16)),
        model_(model_options()) {
    open_base(directory_ / "model", options_.model, options_.lora);
    options_.context = 96;
    options_.lora.settings.by_root = true;
    options_.optimizer.rate = 3e-2;
    trainer_ = std::make_unique<Trainer>(options_, 1);
    for (uint32_t i = 0; i < 3; ++i) trainer_->step(random_rows(options_, i));
    write_model(directory_ / "adapter", *trainer_, {}, pool_);
  }

  ModelOptions model_options() {
    make_model(directory_ / "model", {options_.model.spec, {}, {}}, 7, pool_);
    return {.model = directory_ / "model", .threads = 2};
  }

  // The engine's answer with the adapter that is written, or without one.
  testing_engine::Record::Answer answer(bool with_adapter) {
    Engine engine(model_, {.kv_bytes = 256 << 20, .adapters = {.most = 1, .most_rank = 16}});
    Request request;
    request.id = 1;
    for (int i = 0; i < kPrompt; ++i) request.prompt.edit().push_back((5 + i * 7) % 500);
    request.params.max_tokens = kAnswer;
    request.params.temperature = 0.8;
    request.params.seed = 11;
    request.params.logprobs = 0;
    if (with_adapter)
      request.adapter =
          open_adapter("trained", directory_ / "adapter", model_.spec(), AdapterUser::trainer);
    testing_engine::Record record;
    engine.add(std::move(request));
    while (engine.has_work()) engine.step(record);
    EXPECT_EQ(std::ssize(record.answers[1].tokens), kAnswer);
    return record.answers[1];
  }

  // Prompt and answer as the trainer reads them.
  PackedRow row_of(const testing_engine::Record::Answer& answer) const {
    PackedRow row{.begins = {0}};
    for (int i = 0; i < kPrompt; ++i) row.tokens.push_back((5 + i * 7) % 500);
    row.tokens.insert(row.tokens.end(), answer.tokens.begin(), answer.tokens.end());
    row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
    row.targets.push_back(0);
    row.weights.assign(row.tokens.size(), 1.0F);
    return row;
  }

  // Counts, of positions whose tokens were sampled, logits that hash to another value and
  // log-probabilities that differ.
  std::pair<int, int> differences(const testing_engine::Record::Answer& answer) {
    const std::vector<PackedRow> rows = {row_of(answer)};
    std::pair<int, int> different;
    LogitsHash hash;
    PositionHasher of_position;
    trainer_->logits(rows, [&](size_t, size_t position, std::span<const float> logits) {
      const auto token = static_cast<int>(position) - (kPrompt - 1);
      if (token < 0 || token >= kAnswer) return;
      hash.add(of_position(logits));
      different.first += hash.value() != answer.hashes[static_cast<size_t>(token)];
    });
    const std::vector<float> found = trainer_->log_probabilities(rows);
    for (size_t i = 0; i < answer.tokens.size(); ++i)
      different.second += found[kPrompt - 1 + i] != answer.logprobs[i]->logprob;
    return different;
  }

  TrainerOptions options_;
  ThreadPool pool_{1};
  TempDirectory directory_;
  Model model_;
  std::unique_ptr<Trainer> trainer_;
};
// Phi 3 and Falcon store q, k and v as one, families with states several of their projections.
INSTANTIATE_TEST_SUITE_P(Families, SampledFamily,
                         testing::Values("qwen3", "phi3", "falcon", "qwen3_5_text", "qwen3_next",
                                         "lfm2"));

class Sampled : public SampledFamily {
 protected:
  Sampled() : SampledFamily("qwen3") {}
};

TEST_P(SampledFamily, HasTheTrainersBits) {
  EXPECT_EQ(differences(answer(true)), std::pair(0, 0));
  EXPECT_GT(differences(answer(false)).first, 0);  // the control: the model alone
}

// A control each: another step of the trainer; one number of B with another sign.
TEST_F(Sampled, HasOtherBitsAfterAStep) {
  EXPECT_EQ(differences(answer(true)), std::pair(0, 0));
  const auto before = answer(true);
  trainer_->step(random_rows(options_, 9));
  EXPECT_GT(differences(before).first, 0);
  write_model(directory_ / "adapter", *trainer_, {}, pool_);
  EXPECT_EQ(differences(answer(true)), std::pair(0, 0));
  const std::string file = directory_ / "adapter/adapter_model.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 0x80);
  write_file(file, bytes);
  EXPECT_GT(differences(answer(true)).first, 0);
}

// The written directory says what PEFT reads.
TEST_F(Sampled, IsAPeftDirectory) {
  const LoraAdapter adapter(directory_ / "adapter");
  EXPECT_EQ(adapter.modules().size(), 7U * 4);
  for (const AdapterModule& module : adapter.modules()) {
    EXPECT_EQ(module.rank, 16);
    EXPECT_EQ(module.scale, 6 / 4.0);
  }
  EXPECT_NO_THROW(expect_fits(adapter, options_.model.spec, AdapterUser::trainer));
  const json::Value config = json::parse_file(directory_ / "adapter/adapter_config.json");
  EXPECT_EQ(*config.find("use_rslora"), json::Value(true));
  EXPECT_EQ(*config.find("target_modules"),
            json::Value(json::Array{"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj",
                                    "up_proj", "v_proj"}));
}

// ---- Refusals

TEST(LoraTraining, WhatIsNotDoneIsRefusedByName) {
  const auto refusal = [](const DecoderSpec& spec, auto change) {
    TrainerOptions options = options_of(spec);
    change(options);
    return error_of([&] { Trainer(options, 1); });
  };
  const DecoderSpec dense = tiny_models()[3].spec, experts = tiny_models()[6].spec;
  const auto of_target = [&](const DecoderSpec& spec, const char* name) {
    return refusal(spec, [&](TrainerOptions& o) { o.lora.settings.targets = {"q_proj", name}; });
  };
  expect_message(of_target(dense, "embed_tokens"), "adapters of \"model.embed_tokens\"");
  expect_message(of_target(tiny_models()[0].spec, "lm_head"), "adapters of \"lm_head\"");
  expect_message(of_target(experts, "gate_proj"),
                 "adapters of \"model.layers.0.mlp.experts.0.gate_proj\"");
  expect_message(of_target(experts, "all-linear"), "adapters of \"model.layers.0.mlp.");
  expect_message(of_target(dense, "c_attn"), "found \"c_attn\"");
  expect_message(refusal(dense,
                         [](TrainerOptions& o) {
                           o.exits = {{1, 0.5F}};
                         }),
                 "expected no exit beside [lora]");
  expect_message(refusal(dense,
                         [](TrainerOptions& o) {
                           o.model.spec.mtp_layers = 1;
                           o.lora.settings.targets = {"q_proj"};
                         }),
                 "expected no module of multi-token prediction");
  expect_message(refusal(dense, [](TrainerOptions& o) { o.teacher.weights = o.lora.base; }),
                 "expected no teacher beside [lora]");
  expect_message(refusal(dense, [](TrainerOptions& o) { o.device = "cuda"; }),
                 "adapters are trained on the CPU alone");
}

}  // namespace
}  // namespace invar
