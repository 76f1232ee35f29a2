// A GGUF file's metadata as the config.json of a Hugging Face directory.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "weights/gguf_expert_keys.h"
#include "weights/gguf_gemma_keys.h"
#include "weights/gguf_hybrid_keys.h"
#include "weights/gguf_rope.h"
#include "weights/gguf_texts.h"

namespace invar {

namespace {

using AddKeys = void (*)(const GgufKeys&, json::Value&);

void add_biases(const GgufKeys& in, json::Value& config);
void add_gemma2(const GgufKeys& in, json::Value& config);
void add_gemma3(const GgufKeys& in, json::Value& config);
void add_gemma4_layers(const GgufKeys& in, json::Value& config);
void add_granite(const GgufKeys& in, json::Value& config);
void add_granite_moe(const GgufKeys& in, json::Value& config);
void add_granite_hybrid(const GgufKeys& in, json::Value& config);
void add_gpt_oss(const GgufKeys& in, json::Value& config);

// Rotation turns this: whole heads, the first elements of each, the part that is beside a latent,
// or nothing.
enum class Turning { heads, part, beside_latent, nothing };

struct Architecture {
  std::string_view name;  // in GGUF files
  const char* model_type;
  const char* class_name;
  AddKeys add = nullptr;  // what is its own
  double theta = 10000;   // where rope.freq_base is absent
  Turning turning = Turning::heads;
  bool is_hybrid = false;                               // lists say what each layer is
  const char* module_key = "num_nextn_predict_layers";  // of config.json
};

constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", add_biases},
    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", add_gemma2},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", add_gemma3, 1e6},
    {"gemma4", "gemma4_text", "Gemma4ForCausalLM", add_gemma4_layers, 1e6, Turning::nothing, true},
    {"granite", "granite", "GraniteForCausalLM", add_granite},
    {"olmo2", "olmo2", "Olmo2ForCausalLM"},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM"},
    {"llama", "mixtral", "MixtralForCausalLM", add_mixtral_experts},  // behind the one without
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", add_qwen2_experts},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", add_qwen3_experts},
    {"olmoe", "olmoe", "OlmoeForCausalLM", add_olmoe_experts},
    {"granitemoe", "granitemoe", "GraniteMoeForCausalLM", add_granite_moe},
    {"gpt-oss", "gpt_oss", "GptOssForCausalLM", add_gpt_oss},
    {"glm4moe", "glm4_moe", "Glm4MoeForCausalLM", add_glm_experts, 10000, Turning::part},
    {"deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM", add_deepseek, 10000,
     Turning::beside_latent},
    {"deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM", add_deepseek, 10000,
     Turning::beside_latent},
    {"lfm2", "lfm2", "Lfm2ForCausalLM", add_lfm2, 1e6, Turning::heads, true},
    {"lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM", add_lfm2_experts, 1e6, Turning::heads, true},
    {"granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM", add_granite_hybrid, 10000,
     Turning::heads, true},
    {"nemotron_h", "nemotron_h", "NemotronHForCausalLM", add_nemotron, 10000, Turning::nothing,
     true},
    {"nemotron_h_moe", "nemotron_h", "NemotronHForCausalLM", add_nemotron_experts, 10000,
     Turning::nothing, true},
    {"qwen3next", "qwen3_next", "Qwen3NextForCausalLM", add_qwen3_next, 1e7, Turning::part, true},
    {"falcon-h1", "falcon_h1", "FalconH1ForCausalLM", add_falcon},
    {"kimi-linear", "kimi_linear", "KimiLinearForCausalLM", add_kimi, 10000, Turning::beside_latent,
     true},
    {"qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", add_qwen3_5, 1e7, Turning::part, true,
     "mtp_num_hidden_layers"},
    {"qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", add_qwen3_5_experts, 1e7,
     Turning::part, true, "mtp_num_hidden_layers"},
};

const Architecture& architecture_of(const GgufFile& file) {
  const json::Value* name = file.find("general.architecture");
  if (!name || !name->is_string())
    fail("{}: general.architecture: expected a text, found {}", file.path(),
         name ? json::excerpt(*name) : "nothing");
  const auto is_it = [&](const Architecture& one) { return one.name == name->as_string(); };
  const auto* found = std::ranges::find_if(kArchitectures, is_it);
  if (found == std::end(kArchitectures)) {
    std::string known;
    for (const Architecture& one : kArchitectures)
      if (&one == std::ranges::find(kArchitectures, one.name, &Architecture::name))
        known += (known.empty() ? "" : ", ") + std::string(one.name);
    fail("{}: general.architecture: expected {}, found {}", file.path(), known,
         json::quoted(name->as_string()));
  }
  // The second of two of one name has experts that the first has not, or none of its routers.
  if (!gguf_is_second(GgufKeys(file, found->name))) return *found;
  const auto* other = std::find_if(found + 1, std::end(kArchitectures), is_it);
  return other == std::end(kArchitectures) ? *found : *other;
}

// As files hold them: an f32.
double narrow(double value) {
  return static_cast<double>(static_cast<float>(value));
}

void add_biases(const GgufKeys& in, json::Value& config) {
  config.set("attention_bias", in.tensor("blk.0.attn_q.bias") || in.tensor("blk.0.attn_qkv.bias"));
  config.set("mlp_bias", in.tensor("blk.0.ffn_gate.bias") != nullptr);
}

// All but every `pattern`-th layer have the window, or those that a list says.
void add_windows(const GgufKeys& in, json::Value& config, int64_t pattern) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  config.set("sliding_window", in.integer("attention.sliding_window"));
  const json::Value* own = in.find(kPattern);
  const json::Array* list = own && own->is_array() ? &own->as_array() : nullptr;
  if (list)
    in.check_one_for_each_layer(kPattern, *list);
  else
    pattern = in.find_integer(kPattern).value_or(pattern);
  json::Array types;
  const int64_t layers = config.find("num_hidden_layers")->as_integer();
  for (int64_t i = 0; i < std::min<int64_t>(layers, 1 << 12); ++i) {
    if (list && !(*list)[static_cast<size_t>(i)].is_bool())
      fail("{}: {}: expected a number, or true or false for each layer, found {}", in.file().path(),
           in.key(kPattern), json::excerpt((*list)[static_cast<size_t>(i)]));
    const bool is_sliding = list ? (*list)[static_cast<size_t>(i)].as_bool()
                                 : (i + 1) % std::max<int64_t>(pattern, 1) != 0;
    types.push_back(is_sliding ? "sliding_attention" : "full_attention");
  }
  config.set("layer_types", std::move(types));
}

// The files do not say what queries are divided by: it follows from the largest model's depth.
void add_score_width(const GgufKeys& in, json::Value& config, int64_t layers_of_largest) {
  const bool is_largest = in.integer("block_count") == layers_of_largest;
  config.set("query_pre_attn_scalar",
             is_largest ? in.integer("embedding_length") / in.integer("attention.head_count")
                        : config.find("head_dim")->as_integer());
}

void add_gemma2(const GgufKeys& in, json::Value& config) {
  add_windows(in, config, 2);
  add_score_width(in, config, 46);
  config.set("attn_logit_softcapping", in.find_number("attn_logit_softcapping").value_or(50));
  config.set("final_logit_softcapping", in.find_number("final_logit_softcapping").value_or(30));
}

// No layer has a window.
void add_no_windows(json::Value& config) {
  config.set("sliding_window", json::Value());
  const int64_t layers = config.find("num_hidden_layers")->as_integer();
  config.set("layer_types", json::Array(static_cast<size_t>(std::min<int64_t>(layers, 1 << 12)),
                                        json::Value("full_attention")));
}

// A file without the key has no windows.
void add_gemma_windows(const GgufKeys& in, json::Value& config) {
  if (in.find_integer("attention.sliding_window").value_or(0) > 0)
    add_windows(in, config, 6);
  else
    add_no_windows(config);
}

void add_gemma4_layers(const GgufKeys& in, json::Value& config) {
  add_gemma_windows(in, config);
  add_gemma4(in, config);
}

void add_gemma3(const GgufKeys& in, json::Value& config) {
  add_gemma_windows(in, config);
  add_score_width(in, config, 62);
  if (const auto cap = in.find_number("final_logit_softcapping"))
    config.set("final_logit_softcapping", *cap);
  if (const auto theta = in.find_number("rope.freq_base_swa"))
    config.set("rope_local_base_freq", *theta);
}

void add_granite_scales(const GgufKeys& in, json::Value& config) {
  config.set("embedding_multiplier", in.find_number("embedding_scale").value_or(1));
  config.set("residual_multiplier", in.find_number("residual_scale").value_or(1));
  config.set("logits_scaling", in.find_number("logit_scale").value_or(1));
  const double width = static_cast<double>(config.find("head_dim")->as_integer());
  config.set("attention_multiplier",
             in.find_number("attention.scale").value_or(1 / std::sqrt(width)));
}

void add_granite(const GgufKeys& in, json::Value& config) {
  add_biases(in, config);
  // There, and only there, it says whether anything turns.
  if (const json::Value* turns = in.find("rope.scaling.finetuned");
      turns && *turns != json::Value(true))
    fail("{}: {}: expected true, found {}", in.file().path(), in.key("rope.scaling.finetuned"),
         json::excerpt(*turns));
  add_granite_scales(in, config);
}

void add_granite_hybrid(const GgufKeys& in, json::Value& config) {
  add_granite_scales(in, config);
  add_granite_states(in, config);
}

void add_granite_moe(const GgufKeys& in, json::Value& config) {
  add_granite(in, config);
  add_granite_experts(in, config);
}

// The bounds of its scaling are no whole numbers, as all published models have it. A file must have
// a window: one of all positions is none.
void add_gpt_oss(const GgufKeys& in, json::Value& config) {
  if (in.integer("attention.sliding_window") >= in.integer("context_length"))
    add_no_windows(config);
  else
    add_windows(in, config, 2);
  add_gpt_oss_experts(in, config);
  const json::Value* found = config.find("rope_scaling");
  json::Value scaling = found ? *found : json::Value();
  if (found && *found->find("rope_type") == json::Value("yarn")) scaling.set("truncate", false);
  config.set("rope_scaling", std::move(scaling));
}

void add_ropes(const GgufKeys& in, json::Value& config, const Architecture& architecture) {
  const double theta = in.find_number("rope.freq_base").value_or(architecture.theta);
  const int64_t head_dim = config.find("head_dim")->as_integer();
  const int64_t rotated = in.find_integer("rope.dimension_count").value_or(head_dim);
  if (architecture.turning == Turning::nothing) return;
  if (architecture.turning == Turning::part)
    config.set("partial_rotary_factor",
               static_cast<double>(rotated) / static_cast<double>(head_dim));
  else if (rotated != head_dim)
    fail("{}: {}: expected the {} elements of a head, found {}", in.file().path(),
         in.key("rope.dimension_count"), head_dim, rotated);
  config.set("rope_theta", theta);
  if (json::Value scaling = gguf_rope_scaling(in, theta, head_dim); !scaling.is_null())
    config.set("rope_scaling", std::move(scaling));
}

int64_t vocabulary(const GgufKeys& in) {
  const GgufTensor* embedding = in.tensor("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    fail("{}: the tensor \"token_embd.weight\" is missing or has not two dimensions",
         in.file().path());
  return embedding->shape[0];
}

int64_t head_size(const GgufKeys& in) {
  const int64_t heads = in.integer("attention.head_count");
  const auto size = in.find_integer("attention.key_length");
  const auto values = in.find_integer("attention.value_length");
  if (size && values && *size != *values)
    fail("{}: expected keys as long as values, found {} and {}", in.file().path(), *size, *values);
  if (size) return *size;
  if (heads < 1)
    fail("{}: {}: expected 1 or more, found {}", in.file().path(), in.key("attention.head_count"),
         heads);
  return in.integer("embedding_length") / heads;
}

// Files may leave it out where all layers have experts.
int64_t network_width(const GgufKeys& in, const Architecture& architecture) {
  constexpr const char* kWidth = "feed_forward_length";
  if (!architecture.is_hybrid) return in.integer(kWidth);
  const auto of_experts = in.find_integer("expert_feed_forward_length");
  return of_experts && !in.find(kWidth) ? *of_experts : largest_of_layers(in, kWidth);
}

// Keys that change nothing, and those that change nothing as long as they have one value.
struct Harmless {
  const char* name;
  json::Value only;  // null: any
};

const std::vector<Harmless>& harmless_keys() {
  static const std::vector<Harmless> keys = {
      {"vocab_size", {}},  // the embedding says
      {"tensor_data_layout", {}},
      {"rope.scaling.finetuned", {}},
      {"attention.layer_norm_epsilon", {}},
      {"attention.causal", true},
      {"attention.sliding_window", 0},
      {"attention.scale", 0.0},
      {"attention.clamp_kqv", 0.0},
      {"attention.max_alibi_bias", 0.0},
      {"attn_logit_softcapping", 0.0},
      {"final_logit_softcapping", 0.0},
      {"logit_scale", 1.0},
      {"embedding_scale", 1.0},
      {"residual_scale", 1.0},
      {"pooling_type", 0},
      {"expert_count", 0},
      {"expert_used_count", 0},
      {"expert_shared_count", 0},
      {"expert_group_count", 0},
      {"expert_group_count", 1},
      {"expert_group_used_count", 0},
      {"expert_group_used_count", 1},
      {"expert_weights_scale", 0.0},  // none
      {"expert_weights_scale", 1.0},
      {"leading_dense_block_count", 0},
      {"rope.scale_linear", 1.0},
      {"rope.scaling.attn_factor", 1.0},  // beside yarn's own
      {"rope.scaling.yarn_ext_factor", 1.0},
      {"rope.scaling.yarn_attn_factor", 1.0},
      {"rope.scaling.yarn_log_multiplier", 0.0},
  };
  return keys;
}

// Keys of the architecture that nobody knows go on under their names, for whoever reads the
// configuration to refuse; those of images, which nobody reads, do not.
void add_unknown(const GgufKeys& in, json::Value& config) {
  for (const Harmless& one : harmless_keys()) in.ignore_if(one.name, one.only);
  for (const std::string& name : in.others())
    if (!name.starts_with(in.key("vision.")) && !name.starts_with(in.key("mm.")))
      config.set(name, *in.file().find(name));
}

}  // namespace

std::string gguf_architecture(std::string_view model_type, std::string_view where) {
  for (const Architecture& one : kArchitectures)
    if (one.model_type == model_type) return std::string(one.name);
  fail("{}: models of the type {} have no name in GGUF files that is known here", where,
       json::quoted(model_type));
}

json::Value gguf_config(const GgufFile& file) {
  const Architecture& architecture = architecture_of(file);
  const GgufKeys in(file, architecture.name);
  // Modules that predict further stand behind the layers and are counted as such.
  const int64_t modules = in.find_integer("nextn_predict_layers").value_or(0);
  json::Value config = json::Object{
      {"architectures", json::Array{architecture.class_name}},
      {"model_type", architecture.model_type},
      {"hidden_size", in.integer("embedding_length")},
      {"num_hidden_layers", in.integer("block_count") - modules},
      {"intermediate_size", network_width(in, architecture)},
      {"num_attention_heads", in.integer("attention.head_count")},
      {"num_key_value_heads", architecture.is_hybrid
                                  ? largest_of_layers(in, "attention.head_count_kv")
                                  : in.find_integer("attention.head_count_kv")
                                        .value_or(in.integer("attention.head_count"))},
      {"head_dim", architecture.turning == Turning::beside_latent
                       ? in.integer("rope.dimension_count")
                       : head_size(in)},
      {"rms_norm_eps", narrow(in.number("attention.layer_norm_rms_epsilon"))},
      {"vocab_size", vocabulary(in)},
      {"max_position_embeddings", in.integer("context_length")},
      {"tie_word_embeddings", in.tensor("output.weight") == nullptr},
  };
  add_ropes(in, config, architecture);
  if (architecture.add) architecture.add(in, config);
  if (modules > 0) config.set(architecture.module_key, modules);
  add_unknown(in, config);
  return config;
}

}  // namespace invar
