// A step's new weights become those of the forward where they are: on a GPU.
#pragma once

#include <vector>

#include "model/decoder_weights.h"
#include "model/parameters.h"
#include "train/training_device.h"

namespace invar {

// Whether the decoder's tensors are those of the layout, element by element, but for vectors that
// are 1 + w of these.
bool can_pack_on_device(const TrainingDevice& on, const DecoderSpec& spec);

class DevicePacking {
 public:
  // REQUIRES: can_pack_on_device. All three stay.
  DevicePacking(const TrainingDevice& on, const DecoderSpec& spec, const ParameterLayout& layout);

  // Puts bf16 weights of the layout, on the device, into weights that were loaded there before.
  // Their addresses stay.
  void pack(const bf16_t* from, const DecoderWeights& to, const Execution& on) const;

 private:
  class Visitor;

  const TrainingDevice& device_;
  const DecoderSpec& spec_;
  const ParameterLayout& layout_;
  std::vector<int64_t> offsets_;  // where vectors stand of which the decoder has 1 + w, ascending
  DeviceArray<float> ones_;       // as many as the longest of these has elements
};

}  // namespace invar
