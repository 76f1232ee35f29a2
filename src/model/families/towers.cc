#include "model/families/towers.h"

#include <algorithm>
#include <string_view>

#include "model/families/family.h"

namespace invar {

namespace {

// The configuration of the part that reads text stands in text_config, or (first Qwen2-VLs) among
// the other keys.
struct Tower {
  std::string_view name, architecture;
  std::string_view family;  // where text_config names none
};
constexpr Tower kTowers[] = {
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"},
    {"gemma4", "Gemma4ForConditionalGeneration", "gemma4_text"},
    {"gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_text"},
    {"mistral3", "Mistral3ForConditionalGeneration", "mistral"},
    {"qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2"},
    {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2"},
    {"qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3"},
    {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"},
    {"llama4", "Llama4ForConditionalGeneration", "llama4_text"},
    {"kimi_k25", "KimiK25ForConditionalGeneration", "kimi_k2"},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text"},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"},
};

// Keys of images alone, or of both and harmless.
constexpr std::string_view kTowerKeys[] = {
    "architectures",
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "ignore_index",
    "media_placeholder_token_id",
    "projection_hidden_size",
    "projection_layer_norm_eps",
    "use_unified_vision_chunk",
    "video_placeholder",
    "image_token_index",
    "mm_tokens_per_image",
    "model_type",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "text_config",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_soft_tokens_per_image",
    "vision_start_token_id",
    "vision_token_id",
};

const Tower* find_tower(const json::Value& config) {
  const json::Value* type = config.is_object() ? config.find("model_type") : nullptr;
  for (const Tower& tower : kTowers)
    if (type && *type == json::Value(tower.name)) return &tower;
  return nullptr;
}

// The text's part as a configuration of its family.
json::Value text_config(const json::Value& config, const Tower& tower) {
  const json::Value* inner = config.find("text_config");
  json::Value text = inner && inner->is_object() ? *inner : json::Value(json::Object{});
  for (const auto& [key, value] : config.as_object())
    if ((!text.find(key) || key == "tie_word_embeddings") &&
        std::ranges::find(kTowerKeys, key) == std::end(kTowerKeys))
      text.set(key, value);
  std::erase_if(text.as_object(),
                [](const json::Member& member) { return member.first == "architectures"; });
  const json::Value* type = text.find("model_type");
  const bool is_known = type && type->is_string() && find_family(&Family::name, type->as_string());
  if (!is_known) text.set("model_type", tower.family);
  return text;
}

}  // namespace

std::optional<json::Value> tower_text_config(const json::Value& config) {
  const Tower* tower = find_tower(config);
  if (!tower) return std::nullopt;
  return text_config(config, *tower);
}

}  // namespace invar
