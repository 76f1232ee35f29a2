// The adapter that a rank trains, as its forward and its backward read it.
#pragma once

#include <memory>

#include "model/adapter_gradients.h"
#include "model/workspace.h"
#include "train/lora.h"

namespace invar {

class TrainedAdapter {
 public:
  // `rounded`: its numbers in the layout's order, which change in their place. It stands beside the
  // decoder's weights, and in slot 0 of the forward's adapters.
  TrainedAdapter(const LoraOptions& lora, const ParameterLayout& layout, const Decoder& decoder,
                 const bf16_t* rounded, Workspace& forward);

  // The numbers are others now.
  void publish(const Decoder& decoder, const TrainingKernels& kernels);
  const AdapterGradients& gradients() const { return gradients_; }

 private:
  const bf16_t* rounded_;
  const LoraAdapter adapter_;
  const std::shared_ptr<AdapterWeights> weights_;
  AdapterGradients gradients_;
};

}  // namespace invar
