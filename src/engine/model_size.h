// How large a model is, from what its files say of its tensors: no weight is read.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/model_options.h"
#include "model/families/families.h"
#include "weights/tensor_source.h"

namespace invar {

struct ModelSize {
  int64_t parameters = 0;
  int64_t bytes = 0;                // in memory: as they are stored, but for norms and biases
  std::map<DType, int64_t> stored;  // parameters by type
  // The type of most of them.
  DType most() const;
};

ModelSize size_of(const TensorSource& source);

}  // namespace invar
