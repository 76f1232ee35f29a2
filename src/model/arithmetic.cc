#include "model/arithmetic.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace invar {

int attention_output_runs(const DecoderSpec& spec) {
  return orders::row_parallel_runs(spec.query_width(), spec.heads);
}

int down_runs(int ffn_width) {
  return orders::row_parallel_runs(ffn_width, 1 << 30);
}

namespace {

// What a layer's feed-forward network shares out over the ranks: of experts the one that every row
// goes through. 0: nothing.
int shared_out_width(const LayerSpec& layer) {
  return layer.experts ? layer.experts->shared_width : layer.ffn.width;
}

// Of the layers that have such a product, each value once, ascending by layer. An expert's own down
// product is one run.
std::vector<int> all_down_runs(const DecoderSpec& spec) {
  std::vector<int> runs;
  for (const LayerSpec& layer : spec.layer_specs) {
    const int width = shared_out_width(layer), r = width > 0 ? down_runs(width) : 1;
    if ((width > 0 || layer.experts) && std::ranges::find(runs, r) == runs.end()) runs.push_back(r);
  }
  return runs;
}

// Rotations that a server for long texts has otherwise than one for short ones.
const char* context_of(const DecoderSpec& spec) {
  for (const LayerSpec& layer : spec.layer_specs)
    if (const auto& rope = layer.attention.rope;
        rope && rope->scaling == RopeSpec::Scaling::longrope)
      return rope->is_long ? "/long" : "/short";
  return "";
}

}  // namespace

int most_ranks(const DecoderSpec& spec) {
  if (spec.joint_qk_norm) return 1;  // of all heads of a row
  int most = attention_output_runs(spec);
  for (const LayerSpec& layer : spec.layer_specs) {
    if (const int width = shared_out_width(layer)) most = std::min(most, down_runs(width));
    while (layer.experts && most > layer.experts->routing.experts) most /= 2;
  }
  return most;
}

std::string identity(const Arithmetic& arithmetic, const DecoderSpec& spec) {
  return fmt::format(
      "invar-1/{}/{}/row{}.{}{}", arithmetic.is_baseline ? "control" : name_of(arithmetic.order),
      arithmetic.is_rounded ? "rounded" : name_of(arithmetic.weights), attention_output_runs(spec),
      fmt::join(all_down_runs(spec), "+"), context_of(spec));
}

}  // namespace invar
