#include "model/families/presets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"
#include "model/families/preset_configs.h"

namespace invar {

namespace {

struct Preset {
  std::string_view name, family;
  int hidden, layers, heads, kv_heads, head_dim, ffn, vocab, max_positions;
  float eps;
  bool tied;
  double theta;
  double llama3_factor;  // 0: no scaling
  int window;
};

// clang-format off
constexpr Preset kPresets[] = {
    // name           family     hidden layers heads kv head    ffn   vocab  positions  eps   tied   theta  llama3 window
    {"tiny",          "qwen3",     128,   4,    8,  4,  32,    512,    512,   4096, 1e-6f, false,   1e6,   0,    0},
    {"bench-100m",    "qwen3",     512,  16,    8,  4,  64,   2048,  32000,   8192, 1e-6f, false,   1e6,   0,    0},
    {"bench-473m",    "qwen3",    1024,  28,   16,  8, 128,   3072,  32000,   8192, 1e-6f, false,   1e6,   0,    0},
    {"qwen2.5-0.5b",  "qwen2",     896,  24,   14,  2,  64,   4864, 151936,  32768, 1e-6f, true,    1e6,   0,    0},
    {"qwen2.5-7b",    "qwen2",    3584,  28,   28,  4, 128,  18944, 152064,  32768, 1e-6f, false,   1e6,   0,    0},
    {"qwen3-0.6b",    "qwen3",    1024,  28,   16,  8, 128,   3072, 151936,  40960, 1e-6f, true,    1e6,   0,    0},
    {"qwen3-8b",      "qwen3",    4096,  36,   32,  8, 128,  12288, 151936,  40960, 1e-6f, false,   1e6,   0,    0},
    {"qwen3-32b",     "qwen3",    5120,  64,   64,  8, 128,  25600, 151936,  40960, 1e-6f, false,   1e6,   0,    0},
    {"llama-3.2-1b",  "llama",    2048,  16,   32,  8,  64,   8192, 128256, 131072, 1e-5f, true,    5e5,  32,    0},
    {"llama-3.1-8b",  "llama",    4096,  32,   32,  8, 128,  14336, 128256, 131072, 1e-5f, false,   5e5,   8,    0},
    {"mistral-7b",    "mistral",  4096,  32,   32,  8, 128,  14336,  32000,  32768, 1e-5f, false,   1e4,   0, 4096},
};
// clang-format on

DecoderSpec spec_of(const Preset& preset) {
  DecoderSpec spec;
  set_family(spec, preset.family);
  spec.hidden = preset.hidden;
  spec.layers = preset.layers;
  spec.heads = preset.heads;
  spec.kv_heads = preset.kv_heads;
  spec.head_dim = preset.head_dim;
  spec.vocab = preset.vocab;
  spec.max_positions = preset.max_positions;
  spec.norm_eps = preset.eps;
  spec.tied_head = preset.tied;
  RopeSpec rope{.theta = preset.theta};
  if (preset.llama3_factor > 0)
    rope = {preset.theta, RopeSpec::Scaling::llama3, preset.llama3_factor, 1, 4, 8192};
  spec.set_layers({.parts = {AttentionSpec{.window = preset.window, .rope = rope},
                             DenseFfnSpec{.width = preset.ffn}}});
  return spec;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  for (const PresetConfig& preset : preset_configs()) names.emplace_back(preset.name);
  return names;
}

bool is_preset(std::string_view name) {
  const std::vector<std::string> names = preset_names();
  return std::ranges::find(names, name) != names.end();
}

DecoderSpec preset_spec(std::string_view name) {
  for (const Preset& preset : kPresets)
    if (preset.name == name) return spec_of(preset);
  for (const PresetConfig& preset : preset_configs())
    if (preset.name == name)
      return parse_model_config(json::parse(std::string(preset.config), name), {}, name).spec;
  fail_usage("expected one of the {} presets that invar make-model --help names, found {}",
             preset_names().size(), json::quoted(name));
}

DecoderSpec override_spec(DecoderSpec spec, const SpecOverrides& overrides) {
  const auto change = [](int& value, const std::optional<int>& to) { value = to.value_or(value); };
  change(spec.hidden, overrides.hidden);
  change(spec.layers, overrides.layers);
  change(spec.heads, overrides.heads);
  change(spec.kv_heads, overrides.kv_heads);
  change(spec.head_dim, overrides.head_dim);
  change(spec.vocab, overrides.vocab);
  change(spec.max_positions, overrides.max_positions);
  spec.tied_head = overrides.tied_head.value_or(spec.tied_head);
  // The layers' pattern goes on.
  const std::vector<LayerSpec> known = spec.layer_specs;
  spec.layer_specs.clear();
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec layer = known[static_cast<size_t>(i) % known.size()];
    if (layer.experts()) change(layer.experts()->width, overrides.ffn);
    if (layer.ffn()) change(layer.ffn()->width, overrides.ffn);
    if (overrides.family && layer.attention()) layer.attention()->window = 0;
    if (layer.attention()) change(layer.attention()->window, overrides.window);
    spec.layer_specs.push_back(layer);
  }
  set_family(spec, overrides.family.value_or(spec.family));
  for (LayerSpec& layer : spec.layer_specs)
    if (layer.experts()) {
      change(layer.experts()->routing.experts, overrides.experts);
      change(layer.experts()->routing.chosen, overrides.chosen_experts);
    }
  try {
    check_spec(spec, "the model asked for");
    const AttentionSpec* attention = spec.first<AttentionSpec>();
    if (parse_model_config(config_json({spec, {}, {}}), {}, "").spec != spec)
      fail("the family {} cannot have a sliding window of {}", spec.family,
           attention ? attention->window : 0);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return spec;
}

}  // namespace invar
