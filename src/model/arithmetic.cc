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

// Of the layers that have such a product, each value once, ascending by layer.
std::vector<int> all_down_runs(const DecoderSpec& spec) {
  std::vector<int> runs;
  for (const LayerSpec& layer : spec.layer_specs)
    if (const int r = down_runs(layer.ffn.width);
        layer.ffn.width > 0 && std::ranges::find(runs, r) == runs.end())
      runs.push_back(r);
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
  int most = attention_output_runs(spec);
  for (const int runs : all_down_runs(spec)) most = std::min(most, runs);
  return most;
}

std::string identity(const Arithmetic& arithmetic, const DecoderSpec& spec) {
  return fmt::format(
      "invar-1/{}/{}/row{}.{}{}", arithmetic.is_baseline ? "control" : name_of(arithmetic.order),
      arithmetic.is_rounded ? "rounded" : name_of(arithmetic.weights), attention_output_runs(spec),
      fmt::join(all_down_runs(spec), "+"), context_of(spec));
}

}  // namespace invar
