// EAGLE drafters as they are published: a directory with config.json (a Llama configuration of one
// layer) and model.safetensors. docs/speculation.md names the tensors. Read, they are a decoder of
// one layer that goes on from the target's hidden states.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drafters/tensor_file.h"
#include "model/families/families.h"

namespace invar {

enum class EagleKind {
  eagle,   // EAGLE-1 and 2: the target's last hidden state, the target's head
  eagle3,  // three hidden states of the target, a head of its own
};

class EagleCheckpoint {
 public:
  // `target_weights` lives as long: what the drafter does not have comes from there, also an
  // embedding unless `shares_embedding`. Throws UsageError when there are no such files, Error when
  // something in them does not fit the target.
  // The directory "dummy:SEED" is a made layer of the target's shape before the target's embedding
  // and, of EAGLE-3, a head of 32,000 tokens.
  EagleCheckpoint(const std::string& directory, EagleKind kind, const DecoderSpec& target,
                  const TensorSource& target_weights, bool shares_embedding);

  // Its vocabulary is that of the head.
  const DecoderSpec& spec() const { return spec_; }
  const TensorSource& tensors() const { return *tensors_; }
  // Layers of the target after which its hidden states are wanted, ascending; and which of them
  // stand in a row's features, in their order.
  const std::vector<int32_t>& aux_layers() const { return aux_layers_; }
  const std::vector<int32_t>& features() const { return features_; }
  // By the draft's token; empty: it is the target's.
  const std::vector<int32_t>& target_ids() const { return target_ids_; }
  float logit_scale() const { return logit_scale_; }

 private:
  void make(uint64_t seed);
  void read(const std::string& directory, const TensorSource& target_weights);
  void read_config(const std::string& directory);
  void take_inputs(std::span<const int32_t> layers);
  void read_inputs(RenamedTensors& tensors, const TensorSource& target_weights);
  void read_embedding(RenamedTensors& tensors, const TensorSource& target_weights);
  void read_layer(RenamedTensors& tensors);
  void read_head(RenamedTensors& tensors, const TensorSource& target_weights);
  void read_target_ids();
  JoinSpec& join() { return *spec_.layer_specs[0].find<JoinSpec>(); }

  const EagleKind kind_;
  const bool shares_embedding_;  // the target's, where it has none of its own
  const DecoderSpec target_;
  std::optional<TensorFile> file_;
  std::unique_ptr<TensorSource> tensors_;
  DecoderSpec spec_;
  std::vector<int32_t> aux_layers_, features_, target_ids_;
  float logit_scale_ = 1;
};

}  // namespace invar
