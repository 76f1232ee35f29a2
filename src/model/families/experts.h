// Helpers that families with experts share.
#pragma once

#include "model/families/family.h"

namespace invar {

// The numbers of experts and of those that a token chooses.
Routing read_routing(ConfigReader& reader, std::string_view count_key, int count, int chosen);
// Sigmoids in groups, as GLM 4.5 has them; one without the keys has `count` experts and chooses
// `chosen`.
Routing read_sigmoid_routing(ConfigReader& reader, int count, int chosen);
// The same, back, and an expert's width.
void write_grouped_experts(const ExpertsSpec& experts, json::Value& config);
// A size from 1 on.
int read_size(ConfigReader& reader, std::string_view key, int64_t high, int64_t fallback);
// The sizes under their usual names, from hidden_size to max_position_embeddings; `usual` has those
// of absent keys.
void read_usual_sizes(ConfigReader& reader, DecoderSpec& spec, const DecoderSpec& usual);
// The first layer's with experts.
const ExpertsSpec& experts_of(const DecoderSpec& spec);
// A few small ones in every layer, where a spec of another family becomes one with experts.
void imply_experts(DecoderSpec& spec, const Routing& like = {});

// Qwen2-MoE's and what followed it: a gated shared expert, dense layers where the keys say so.
void read_gated_experts(ConfigReader& reader, DecoderSpec& spec, ExpertsSpec like);
void write_gated_experts(const DecoderSpec& spec, json::Value& config);
void imply_gated_experts(DecoderSpec& spec, const Routing& like = {});

// Experts in the layers that `is_in` says.
template <typename IsIn>
void set_experts(DecoderSpec& spec, const ExpertsSpec& experts, IsIn is_in) {
  for (int i = 0; i < spec.layers; ++i) {
    LayerSpec& layer = spec.layer_specs[static_cast<size_t>(i)];
    if (is_in(i)) layer.put(experts);
  }
}

// Where an expert's tensor stands in those of all experts [experts][rows][columns], of gate and up
// the gate's rows first.
StoredAt stacked_at(const DecoderSpec& spec, const TensorSpec& tensor, std::string gate_up,
                    std::string down);
// The same where inputs are rows, as newer versions of transformers save them: `module` has
// gate_up_proj and down_proj.
StoredAt turned_stack_at(const DecoderSpec& spec, const TensorSpec& tensor,
                         const std::string& module);

}  // namespace invar
