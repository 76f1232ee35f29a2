// Presets as their configurations say it, where that is more than sizes.
#include "model/families/preset_configs.h"

#include <array>

namespace invar {

namespace {

constexpr std::array kConfigs = {
    PresetConfig{"gemma-2-2b", R"({"model_type": "gemma2", "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "sliding_window": 4096,
        "query_pre_attn_scalar": 256})"},
    PresetConfig{"gemma-3-270m", R"({"model_type": "gemma3_text", "hidden_size": 640,
        "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 512,
        "query_pre_attn_scalar": 256})"},
    PresetConfig{"gemma-3-4b", R"({"model_type": "gemma3_text", "hidden_size": 2560,
        "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 1024,
        "query_pre_attn_scalar": 256, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})"},
    PresetConfig{"phi-3-mini", R"({"model_type": "phi3", "hidden_size": 3072,
        "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "sliding_window": 2047})"},
    PresetConfig{"phi-4", R"({"model_type": "phi3", "hidden_size": 5120,
        "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 10, "vocab_size": 100352, "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5, "rope_theta": 250000, "sliding_window": null})"},
    PresetConfig{"olmo-2-7b", R"({"model_type": "olmo2", "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 100352, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 500000})"},
    PresetConfig{"granite-3.1-2b", R"({"model_type": "granite", "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 49155, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 5000000, "tie_word_embeddings": true,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
        "attention_multiplier": 0.015625})"},
    PresetConfig{"smollm3-3b", R"({"model_type": "smollm3", "hidden_size": 2048,
        "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 128256, "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-6, "rope_theta": 5000000})"},
    PresetConfig{"glm-4-9b", R"({"model_type": "glm4", "hidden_size": 4096,
        "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "attention_bias": true})"},
    PresetConfig{"mistral-small-24b", R"({"model_type": "mistral", "hidden_size": 5120,
        "intermediate_size": 32768, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 100000000.0,
        "sliding_window": null})"},
    PresetConfig{"seed-oss-36b", R"({"model_type": "seed_oss", "hidden_size": 5120,
        "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 80,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 155136,
        "max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "rope_theta": 10000000.0})"},
    PresetConfig{"exaone-4.0-32b", R"({"model_type": "exaone4", "hidden_size": 5120,
        "intermediate_size": 27392, "num_hidden_layers": 64, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 102400,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1000000,
        "sliding_window": 4096, "sliding_window_pattern": "LLLG"})"},
    PresetConfig{"internlm3-8b", R"({"model_type": "internlm3", "hidden_size": 4096,
        "intermediate_size": 10240, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 128512,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 50000000})"},
    PresetConfig{"falcon-7b", R"({"model_type": "falcon", "hidden_size": 4544,
        "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024,
        "layer_norm_epsilon": 1e-5, "multi_query": true})"},
    PresetConfig{"falcon-40b", R"({"model_type": "falcon", "hidden_size": 8192,
        "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
        "new_decoder_architecture": true, "vocab_size": 65024, "layer_norm_epsilon": 1e-5})"},
};

}  // namespace

std::span<const PresetConfig> preset_configs() {
  return kConfigs;
}

}  // namespace invar
