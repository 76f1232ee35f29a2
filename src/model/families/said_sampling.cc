#include "model/families/said_sampling.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "weights/gguf.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

// 0: as it is without it.
struct Recommended {
  std::string_view family;
  double temperature = 0, top_p = 0;
  int64_t top_k = 0;
  double min_p = 0, repetition_penalty = 0;
};

// docs/models.md has the same rows with their sources. A family stands here where its publisher
// recommends one set of values for its models that chat.
constexpr Recommended kRecommended[] = {
    // meta-llama/llama3, its example of a chat
    {.family = "llama", .temperature = 0.6, .top_p = 0.9},
    // QwenLM's documentation of Qwen2.5, deployment with vLLM; top_k: generation_config.json
    {.family = "qwen2", .temperature = 0.7, .top_p = 0.8, .top_k = 20, .repetition_penalty = 1.05},
    {.family = "qwen2_moe",
     .temperature = 0.7,
     .top_p = 0.8,
     .top_k = 20,
     .repetition_penalty = 1.05},
    // QwenLM's documentation of Qwen3, with thoughts: "the default setting in
    // generation_config.json"
    {.family = "qwen3", .temperature = 0.6, .top_p = 0.95, .top_k = 20},
    {.family = "qwen3_moe", .temperature = 0.6, .top_p = 0.95, .top_k = 20},
    // The Gemma team's for Gemma 3; generation_config.json of both
    {.family = "gemma3_text", .temperature = 1, .top_p = 0.95, .top_k = 64},
    {.family = "gemma4_text", .temperature = 1, .top_p = 0.95, .top_k = 64},
    // docs.liquid.ai, text generation and prompting, of LFM2
    {.family = "lfm2", .temperature = 0.3, .min_p = 0.15, .repetition_penalty = 1.05},
    {.family = "lfm2_moe", .temperature = 0.3, .min_p = 0.15, .repetition_penalty = 1.05},
    // openai/gpt-oss, README
    {.family = "gpt_oss", .temperature = 1, .top_p = 1},
};

json::Value config_of(const Recommended& row) {
  json::Value config = json::Object{{"temperature", row.temperature}};
  if (row.top_p > 0) config.set("top_p", row.top_p);
  if (row.top_k > 0) config.set("top_k", row.top_k);
  if (row.min_p > 0) config.set("min_p", row.min_p);
  if (row.repetition_penalty > 0) config.set("repetition_penalty", row.repetition_penalty);
  return config;
}

// Whether the file that would name sampling parameters is not there, or says nothing of any.
bool is_silent(const HfDirectory& model) {
  if (!is_gguf(model.path)) return model.generation_config.is_null();
  constexpr const char* kNames[] = {"temperature", "top_p", "top_k", "min_p"};
  return std::ranges::none_of(
      kNames, [&](const char* name) { return model.generation_config.find(name) != nullptr; });
}

bool has_chat_template(const std::string& path) {
  if (is_gguf(path)) return GgufFile(path).find("tokenizer.chat_template") != nullptr;
  std::error_code ignored;
  const fs::path tokenizer = fs::path(path) / "tokenizer_config.json";
  if (fs::exists(fs::path(path) / "chat_template.jinja", ignored)) return true;
  return fs::exists(tokenizer, ignored) && json::parse_file(tokenizer).find("chat_template");
}

}  // namespace

SaidSampling said_sampling(const HfDirectory& model, std::string_view family) {
  if (!is_silent(model))
    return {model.generation_config, is_gguf(model.path) ? "GGUF" : "generation_config.json"};
  const auto* row = std::ranges::find(kRecommended, family, &Recommended::family);
  if (row == std::end(kRecommended) || !has_chat_template(model.path))
    return {json::Object{}, "none"};
  return {config_of(*row), "the family " + std::string(family)};
}

}  // namespace invar
