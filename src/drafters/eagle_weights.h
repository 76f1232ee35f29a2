// The weights of an EAGLE drafter as they are published: a directory with config.json (a Llama
// configuration of one layer) and model.safetensors. docs/speculation.md names the tensors.
#pragma once

#include <string>
#include <vector>

#include "drafters/host_products.h"
#include "drafters/target_parts.h"

namespace invar {

enum class EagleKind {
  eagle,   // EAGLE-1 and 2: the target's last hidden state, the target's head
  eagle3,  // three hidden states of the target, a head of its own
};

struct EagleWeights {
  // Throws UsageError when there are no such files, Error when something in them does not fit the
  // target. What lies in `products` lives as long as that. The directory "dummy:SEED" is a layer of
  // the target's shape with made weights, before the target's embedding and head.
  EagleWeights(const std::string& directory, EagleKind kind, const Model& target,
               HostProducts& products);

  int32_t width() const { return spec.hidden; }
  // Layers of the target after which its hidden states are wanted, ascending; and which of them
  // stand in a row's features, in their order.
  std::vector<int32_t> aux_layers, features;

  const EagleKind kind;
  const int32_t target_width, target_vocab;
  DecoderSpec spec;  // of the one layer
  Matrix fuse;
  std::vector<float> fuse_bias;  // this and the vectors below: empty where there is none
  std::vector<float> embedding_norm, hidden_norm;
  bool residual_is_normed = false;  // else the residual stream begins with the feature itself
  Matrix qkv, o, gate_up, down;     // outputs of gate, then of up
  std::vector<float> qkv_bias;
  std::vector<float> ffn_norm, final_norm;
  Matrix head;
  std::vector<int32_t> target_ids;  // by the draft's token; empty: it is the target's
  float logit_scale = 1;

  // The embedding of a token of the target: `width()` numbers.
  void embed(int32_t token, float* out) const;

 private:
  void read_config(const std::string& directory, int32_t target_layers);
  void make_config(const DecoderSpec& target);
  void take_inputs(std::span<const int32_t> layers);
  void read_layer(const TensorFile& file, HostProducts& products);
  void read_inputs(const TensorFile& file, HostProducts& products);
  void read_head(const TensorFile& file, HostProducts& products);
  void read_target_ids(const TensorFile& file);

  std::string where_;  // for errors
  int32_t draft_vocab_ = 0;
  TargetTables tables_;
  std::vector<bf16_t> embedding_;  // its own, or empty: the target's
};

}  // namespace invar
