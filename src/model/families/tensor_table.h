// Every tensor of a decoder: its name in Hugging Face checkpoints and its shape. The rows of a
// layer stand with its parts (model/parts), the others here. Checks, loading and the layout of
// parameters read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parts/tensors.h"
#include "model/shard.h"

namespace invar {

struct TensorSpec {
  TensorRole role;
  int layer;  // -1: not in a layer
  std::string name;
  std::vector<int64_t> shape;
  int expert = -1;  // or head; -1: not of one
  bool takes_quantised = false;

  bool operator==(const TensorSpec&) const = default;
};

// In the order of computation. Needs a spec that check_spec accepts.
std::vector<TensorSpec> tensors_of(const DecoderSpec& spec);

// Whether two layers have the same tensors, of the same shapes.
bool are_alike(const DecoderSpec& spec, int layer, int other);

// The name of a tensor outside the layers.
std::string tensor_name(TensorRole role);
// The name of a layer's row, or of an expert's or a head's.
std::string tensor_name(const TensorRow& row, int layer, int expert = -1);
// The last tensor of the module of multi-token prediction: [D].
TensorRow module_norm(const DecoderSpec& spec);

}  // namespace invar
