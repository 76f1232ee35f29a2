// A few steps of tiny models as JSON, for torch_test.py: the rows, and the state before and after
// every step. Usage: write_torch_case FOLDER > case.json
#include <cstdio>
#include <random>

#include "base/input_file.h"
#include "base/json.h"
#include "model/families/presets.h"
#include "model/families/trained_source.h"
#include "train/layout_source.h"
#include "train/trainer.h"
#include "training_case.h"

namespace invar {
namespace {

constexpr int kSteps = 4;

json::Array numbers(std::span<const float> values) {
  json::Array list;
  for (const float v : values) list.push_back(double{v});
  return list;
}

std::vector<PackedRow> random_rows(const TrainerOptions& options, std::mt19937& random) {
  std::vector<PackedRow> rows(static_cast<size_t>(options.rows));
  for (PackedRow& row : rows) {
    row.begins = {0, 1 + static_cast<int32_t>(random() % 30)};
    for (int i = 0; i < options.context; ++i) {
      row.tokens.push_back(static_cast<int32_t>(random() % options.model.spec.vocab));
      row.targets.push_back(static_cast<int32_t>(random() % options.model.spec.vocab));
      row.weights.push_back(random() % 4 ? 1.0f : 0.0f);
    }
  }
  return rows;
}

json::Value rows_json(const std::vector<PackedRow>& rows) {
  json::Array list;
  for (const PackedRow& row : rows)
    list.push_back(json::Object{{"tokens", json::Array(row.tokens.begin(), row.tokens.end())},
                                {"targets", json::Array(row.targets.begin(), row.targets.end())},
                                {"weights", numbers(row.weights)},
                                {"begins", json::Array(row.begins.begin(), row.begins.end())}});
  return list;
}

// The numbers of one array under the decoder's names.
class Numbers final : public LayoutSource {
 public:
  Numbers(const ParameterLayout& layout, const std::vector<float>& all)
      : LayoutSource(layout), all_(all) {}

 private:
  void read_elements(int64_t offset, int64_t count, DType as, void* out) const override {
    convert_elements(&all_[static_cast<size_t>(offset)], DType::f32, count, as, out);
  }
  const std::vector<float>& all_;
};

// As a checkpoint of the family holds it.
json::Value state_json(const Trainer& trainer) {
  TrainingState state;
  trainer.copy_state(state);
  const DecoderSpec& spec = trainer.options().model.spec;
  const Numbers own_master(trainer.layout(), state.master),
      own_first(trainer.layout(), state.first);
  const auto master = stored_form(spec, own_master), first = stored_form(spec, own_first);
  json::Value tensors = json::Object{};
  for (const std::string& name : master->names()) {
    const auto part = [&](const TensorSource& of) {
      std::vector<float> values(static_cast<size_t>(of.info(name).elements()));
      of.read(name, 0, std::ssize(values), DType::f32, values.data());
      return numbers(values);
    };
    const auto& shape = master->info(name).shape;
    tensors.set(name, json::Object{{"shape", json::Array(shape.begin(), shape.end())},
                                   {"master", part(*master)},
                                   {"first", part(*first)}});
  }
  return tensors;
}

json::Value steps_of(const DecoderSpec& spec, const json::Value& config = nullptr) {
  TrainerOptions options;
  options.model.spec = spec;
  options.context = has_states(spec) ? 160 : 32;  // over boundaries
  options.rows = 4;
  options.groups = 2;
  options.threads = 1;
  options.optimizer = {.rate = 1e-2, .warmup = 2, .steps = 20, .clip = 0};
  Trainer trainer(options, 1);
  std::mt19937 random(7);
  json::Array states{state_json(trainer)}, rows, rates;
  for (int i = 0; i < kSteps; ++i) {
    const auto packed = random_rows(options, random);
    rows.push_back(rows_json(packed));
    rates.push_back(trainer.step(packed).rate);
    states.push_back(state_json(trainer));
  }
  const OptimizerOptions& o = options.optimizer;
  return json::Object{{"config", config.is_null() ? config_json(options.model) : config},
                      {"of_transformers", !config.is_null()},
                      {"qk_norm", spec.qk_norm},
                      {"beta1", double{o.beta1}},
                      {"beta2", double{o.beta2}},
                      {"eps", double{o.eps}},
                      {"decay", double{o.decay}},
                      {"rates", std::move(rates)},
                      {"rows", std::move(rows)},
                      {"states", std::move(states)}};
}

// A family's shape as tests/families has it, made smaller.
json::Value small_config(const json::Value& shape) {
  json::Value config = shape;
  config.set("hidden_size", 64);
  config.set("intermediate_size", 96);
  config.set("num_hidden_layers", 2);
  config.set("vocab_size", 61);
  if (shape.find("sliding_window")) config.set("sliding_window", 11);
  if (shape.find("layer_types"))
    config.set("layer_types", json::Array{"sliding_attention", "full_attention"});
  if (shape.find("mlp_only_layers")) config.set("mlp_only_layers", json::Array{1});
  if (shape.find("num_experts")) config.set("num_experts", 6);
  // Every expert of these: bf16's error turns no choice.
  const std::string family = shape.find("model_type")->as_string();
  if (family == "olmoe" || family == "qwen2_moe") config.set("num_experts_per_tok", 6);
  if (shape.find("n_routed_experts"))
    for (const auto& [key, value] : {std::pair{"n_routed_experts", 6},
                                     {"num_experts_per_tok", 6},
                                     {"n_group", 1},
                                     {"topk_group", 1}})
      config.set(key, value);
  config.set("tie_word_embeddings", family == "gemma3_text");
  return config;
}

// Those whose model transformers has, whose backward pass is the witness.
void add_families(json::Value& cases, const std::string& folder) {
  for (const auto& [file, families] :
       {std::pair{"tiny_configs.json", std::vector{"gemma3_text", "olmo2", "olmo3", "exaone4"}},
        std::pair{"tiny_expert_configs.json",
                  std::vector{"qwen3_moe", "olmoe", "qwen2_moe", "glm4_moe", "deepseek_v2",
                              "deepseek_v3"}}}) {
    const std::string path = folder + "/" + file;
    const json::Value shapes = json::parse(read_whole_file(path, 1 << 20), path);
    for (const char* family : families) {
      const json::Value config = small_config(*shapes.find(family));
      cases.set(family, steps_of(parse_model_config(config, nullptr, path, {}).spec, config));
    }
  }
}

// The first rows of a sequence leave a state little, and a norm with a small epsilon makes of that,
// and of its rounding, as much as of others.
constexpr float kStateNormEps = 0.01f;

// Layers of Mamba 2 beside attention and dense networks: no experts, no multipliers.
json::Value dense_hybrid(const json::Value& shape) {
  json::Value config = shape;
  for (const char* key : {"rms_norm_eps", "layer_norm_epsilon"})
    if (shape.find(key)) config.set(key, json::shortest(kStateNormEps));
  config.set("hidden_size", 64);
  config.set("intermediate_size", 96);
  config.set("num_attention_heads", 4);
  config.set("num_key_value_heads", 2);
  config.set("vocab_size", 61);
  if (shape.find("hybrid_override_pattern")) {
    config.set("head_dim", 16);
    config.set("hybrid_override_pattern", "M-*M");
    config.set("mamba_head_dim", 16);
    config.set("ssm_state_size", 24);
    return config;
  }
  config.set("mamba_d_head", 16);
  config.set("num_local_experts", 0);
  config.set("num_experts_per_tok", 0);
  config.set("embedding_multiplier", 1.0);
  config.set("residual_multiplier", 1.0);
  config.set("logits_scaling", 1.0);
  config.set("attention_multiplier", 0.25);
  return config;
}

// Those of layers with a state, as presets have them, or as models have.
void add_states(json::Value& cases, const std::string& folder) {
  const std::string path = folder + "/tiny_hybrid_configs.json";
  const json::Value shapes = json::parse(read_whole_file(path, 1 << 20), path);
  for (const char* family : {"granitemoehybrid", "nemotron_h"}) {
    const json::Value config = dense_hybrid(*shapes.find(family));
    cases.set(family, steps_of(parse_model_config(config, nullptr, path, {}).spec, config));
  }
  for (const char* family : {"lfm2", "qwen3_5_text", "olmo_hybrid"}) {
    DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = family,
                                                           .hidden = 64,
                                                           .layers = 4,
                                                           .heads = 4,
                                                           .kv_heads = 2,
                                                           .head_dim = 16,
                                                           .ffn = 96,
                                                           .vocab = 61});
    spec.norm_eps = kStateNormEps;
    for (LayerSpec& layer : spec.layer_specs)
      if (RecurrentSpec* heads = layer.find<RecurrentSpec>()) heads->norm_eps = 0;
    cases.set(family, steps_of(spec, config_json({.spec = spec})));
  }
  DecoderSpec channels = tiny_models_with_states()[3].spec;
  channels.tied_head = false;
  json::Value config = config_json({.spec = channels});
  config.set("mlp_layer_types", json::Array(static_cast<size_t>(channels.layers), "dense"));
  cases.set("kimi_linear", steps_of(channels, config));
}

}  // namespace
}  // namespace invar

// write_torch_case FOLDER: that of tests/families.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  using namespace invar;
  json::Value cases = json::Object{};
  for (const TinyModel& model : tiny_models())
    if (model.spec.family != "mistral" && model.spec.family != "qwen3_moe" &&
        model.spec.mtp_layers == 0 &&
        model.spec.layer(0).attention()->rope->scaling == RopeSpec::Scaling::none)
      cases.set(model.name, steps_of(model.spec));
  add_families(cases, argv[1]);
  add_states(cases, argv[1]);
  std::puts(json::dump(cases).c_str());
}
