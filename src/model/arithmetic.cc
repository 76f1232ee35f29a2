#include "model/arithmetic.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace invar {

int attention_output_split_k(const DecoderSpec& spec, const AttentionSpec& attention) {
  int value = spec.head_dim_of(attention);
  if (attention.value_dim) value = attention.value_dim;
  if (attention.latent) value = attention.latent->value;
  return orders::row_parallel_runs(spec.heads * value, spec.heads);
}

int recurrent_output_split_k(const RecurrentSpec& spec) {
  return orders::row_parallel_runs(spec.value_width(), spec.key_heads);
}

int channel_delta_output_split_k(const ChannelDeltaSpec& spec) {
  return orders::row_parallel_runs(spec.width(), spec.heads);
}

int conv_output_split_k(const DecoderSpec& spec) {
  return orders::row_parallel_runs(spec.hidden, 1 << 30);
}

int state_space_output_split_k(const StateSpaceSpec& spec) {
  return orders::row_parallel_runs(spec.width(),
                                   spec.norm_groups > 0 ? spec.norm_groups : spec.groups);
}

int down_split_k(int ffn_width) {
  return orders::row_parallel_runs(ffn_width, 1 << 30);
}

namespace {

// The width that a layer's feed-forward network shares out over the ranks; with experts that of the
// one that every row goes through. 0: nothing.
int shared_out_width(const LayerSpec& layer) {
  return layer.experts() && !layer.ffn() ? layer.experts()->shared_width : layer.ffn_width();
}

// The values of the layers that attend, each once, ascending by layer. A model without such layers
// has the value that one would have.
std::vector<int> all_attention_split_k(const DecoderSpec& spec) {
  std::vector<int> split_k;
  for (const LayerSpec& layer : spec.layer_specs) {
    if (!layer.attention()) continue;
    const int r = attention_output_split_k(spec, *layer.attention());
    if (std::ranges::find(split_k, r) == split_k.end()) split_k.push_back(r);
  }
  if (split_k.empty()) split_k.push_back(attention_output_split_k(spec, {}));
  return split_k;
}

// The runs of the layers that have such a product, each value once, ascending by layer. An expert's
// own down product is one run.
std::vector<int> all_down_split_k(const DecoderSpec& spec) {
  std::vector<int> split_k;
  for (const LayerSpec& layer : spec.layer_specs) {
    const int width = shared_out_width(layer), r = width > 0 ? down_split_k(width) : 1;
    if ((width > 0 || layer.experts()) && std::ranges::find(split_k, r) == split_k.end())
      split_k.push_back(r);
  }
  return split_k;
}

std::string name_of(const Arithmetic& arithmetic) {
  if (arithmetic.chain > 0)
    return fmt::format("control-batch.{}.t{}", name_of(arithmetic.order), arithmetic.chain);
  if (!arithmetic.is_baseline) return std::string(name_of(arithmetic.order));
  return arithmetic.baseline_split_k == 0 ? "control"
                                          : fmt::format("control:{}", arithmetic.baseline_split_k);
}

// Rotations that a server for long texts has otherwise than one for short ones.
const char* context_of(const DecoderSpec& spec) {
  for (const LayerSpec& layer : spec.layer_specs)
    if (const AttentionSpec* attention = layer.attention();
        attention && attention->rope && attention->rope->scaling == RopeSpec::Scaling::longrope)
      return attention->rope->is_long ? "/long" : "/short";
  return "";
}

}  // namespace

int most_ranks(const DecoderSpec& spec) {
  if (spec.joint_qk_norm) return 1;  // of all heads of a row
  int most = std::ranges::min(all_attention_split_k(spec));
  for (const LayerSpec& layer : spec.layer_specs) {
    if (const int width = shared_out_width(layer)) most = std::min(most, down_split_k(width));
    if (const auto* recurrent = layer.find<RecurrentSpec>())
      most = std::min(most, recurrent_output_split_k(*recurrent));
    if (const auto* state_space = layer.find<StateSpaceSpec>())
      most = std::min(most, state_space_output_split_k(*state_space));
    if (const auto* delta = layer.find<ChannelDeltaSpec>())
      most = std::min(most, channel_delta_output_split_k(*delta));
    if (layer.find<ShortConvSpec>()) most = std::min(most, conv_output_split_k(spec));
    while (layer.experts() && most > layer.experts()->routing.experts) most /= 2;
  }
  return most;
}

int most_stages(const DecoderSpec& spec) {
  const bool shares = std::ranges::any_of(spec.layer_specs, [](const LayerSpec& layer) {
    return (layer.attention() && layer.attention()->shares_keys) ||
           (layer.indexer() && layer.indexer()->is_shared);
  });
  return shares || spec.layer_input_width() > 0 ? 1 : spec.layers;
}

namespace {

std::string_view mode_of(const Arithmetic& arithmetic) {
  if (arithmetic.quantised == DType::i8) return "int8";
  if (arithmetic.quantised == DType::e4m3_row) return "fp8-row";
  if (arithmetic.is_quantised()) return "fp8";
  if (arithmetic.multiplies_blocks) return "blocks";
  if (arithmetic.is_exact) return "exact";
  return arithmetic.is_rounded ? "rounded" : name_of(arithmetic.weights);
}

std::string cache_of(const Arithmetic& arithmetic) {
  if (arithmetic.cache == CacheType::bf16 || arithmetic.cache == CacheType::f32) return "";
  return fmt::format("/kv-{}", name_of(arithmetic.cache));
}

}  // namespace

std::string identity(const Arithmetic& arithmetic, const DecoderSpec& spec) {
  return fmt::format("invar-1/{}/{}/row{}.{}{}{}", name_of(arithmetic), mode_of(arithmetic),
                     fmt::join(all_attention_split_k(spec), "+"),
                     fmt::join(all_down_split_k(spec), "+"), context_of(spec),
                     cache_of(arithmetic));
}

}  // namespace invar
