// Windows of attention in config.json: which layers have one, and how long it is.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "model/families/family.h"

namespace invar {

namespace {

// The window of the layers that have one, or 0.
int read_window(ConfigReader& reader, WindowRule rule) {
  if (rule == WindowRule::none) {
    check_neutral(reader, "use_sliding_window", false);
    check_neutral(reader, "sliding_window", {});
    return 0;
  }
  const int64_t fallback = reader.is_null("sliding_window") ? 0 : 4096;
  const int64_t least = rule == WindowRule::switched ? 0 : 1;  // where it may be switched off
  const int window =
      static_cast<int>(reader.integer("sliding_window", least, kMaxPositions, fallback));
  if (rule != WindowRule::switched) return window;
  return reader.boolean("use_sliding_window", false) ? window : 0;
}

// Which layers have none: every n-th, where the pattern is a number; or as a word of L (with one)
// and G says, over and over, and the last one, too.
std::vector<bool> read_pattern(ConfigReader& reader, int64_t every, int layers) {
  const json::Value* found = reader.take("sliding_window_pattern");
  std::vector<bool> is_full(static_cast<size_t>(layers));
  if (found && found->is_string() && !found->as_string().empty() &&
      found->as_string().find_first_not_of("LG") == std::string::npos) {
    const std::string& word = found->as_string();
    for (size_t i = 0; i < is_full.size(); ++i) is_full[i] = word[i % word.size()] == 'G';
    is_full.back() = true;
    return is_full;
  }
  every = reader.integer("sliding_window_pattern", 1, kMaxLayers, every);
  for (size_t i = 0; i < is_full.size(); ++i)
    is_full[i] = (static_cast<int64_t>(i) + 1) % every == 0;
  return is_full;
}

}  // namespace

void read_windows(ConfigReader& reader, const Family& family, DecoderSpec& spec) {
  const int layers = spec.layers;
  const int window = read_window(reader, family.windows);
  int64_t first = 0;
  if (family.windows == WindowRule::switched)
    first = reader.integer("max_window_layers", 0, INT32_MAX, 28);
  std::vector<bool> is_full(static_cast<size_t>(layers));
  if (family.windows == WindowRule::pattern && window > 0)
    is_full = read_pattern(reader, family.pattern, layers);
  else if (family.windows == WindowRule::pattern)
    reader.take("sliding_window_pattern");  // of no windows
  const auto set_window = [&](int layer, int to) {
    if (AttentionSpec* own = spec.layer_specs[static_cast<size_t>(layer)].attention())
      own->window = to;
  };
  for (int i = 0; i < layers; ++i)
    set_window(i, i >= first && !is_full[static_cast<size_t>(i)] ? window : 0);

  const json::Value* types =
      family.has_states || family.has_layer_kinds ? nullptr : reader.take("layer_types");
  if (!types) return;
  const size_t found = types->is_array() ? types->as_array().size() : 0;
  if (found != static_cast<size_t>(layers))
    fail("{}: \"layer_types\": expected an array of {} names, found {}", reader.where(), layers,
         json::excerpt(*types));
  for (int i = 0; i < layers; ++i) {
    const json::Value& type = types->as_array()[i];
    if (type == json::Value("full_attention"))
      set_window(i, 0);
    else if (type == json::Value("sliding_attention") && window > 0)
      set_window(i, window);
    else
      fail("{}: \"layer_types\": expected full_attention{}, found {} for layer {}", reader.where(),
           window > 0 ? " or sliding_attention" : " (there is no window)", json::excerpt(type), i);
  }
}

void write_windows(const DecoderSpec& spec, WindowRule rule, json::Value& object) {
  if (rule == WindowRule::none) return;
  int window = 0;
  for (const LayerSpec& layer : spec.layer_specs) window = std::max(window, layer.window());
  if (window > 0 && sees_ahead(spec)) --window;  // as read_directions counts
  object.set("sliding_window", window ? json::Value(window) : json::Value());
  if (rule == WindowRule::all_layers) return;
  json::Array types;
  for (const LayerSpec& layer : spec.layer_specs)
    types.push_back(layer.window() ? "sliding_attention" : "full_attention");
  if (rule == WindowRule::switched) object.set("use_sliding_window", window > 0);
  object.set("layer_types", std::move(types));
}

}  // namespace invar
