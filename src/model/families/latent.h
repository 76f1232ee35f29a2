// Latent attention in DeepSeek's checkpoints and in those of families that followed it.
#pragma once

#include "model/families/family.h"

namespace invar {

// The place of a tensor of latent attention. Where `in_pairs`, elements that turn with each other
// stand beside each other.
StoredAt stored_latent(const DecoderSpec& spec, const TensorSpec& tensor, bool in_pairs);

// ---- Of DeepSeek-V3, for families that followed it.

void read_latent_sizes(ConfigReader& reader, DecoderSpec& spec);
// Attention, whose norms of latents have an eps of their own, and experts in the layers that a list
// names, or behind some dense ones.
void read_latent_experts(ConfigReader& reader, DecoderSpec& spec);
void write_latent_experts(const DecoderSpec& spec, json::Value& config);
StoredAt stored_latent_experts(const DecoderSpec& spec, const TensorSpec& tensor);
void imply_latent_experts(DecoderSpec& spec);

}  // namespace invar
