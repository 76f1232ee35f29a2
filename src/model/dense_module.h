// A matrix behind the pooling of an embedding model, as sentence-transformers writes it, or the
// head of a cross-encoder: y = f(W x + b).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/sha256.h"
#include "weights/tensor_source.h"

namespace invar {

struct DenseModule {
  enum class Curve : uint8_t { identity, tanh, sigmoid, relu };
  int64_t inputs = 0, outputs = 0;
  Curve curve = Curve::identity;
  Digest digest{};  // of weights and bias as f32, little-endian
  // [outputs][inputs], and [outputs] or nothing.
  std::shared_ptr<const std::vector<float>> weights, bias;

  // y_i = f(dot(x, w_i) + b_i), the dot portable in f32 (numerics 1), f from exp (numerics 5.1).
  // Expects flush-to-zero mode and `inputs` numbers.
  std::vector<float> apply(std::span<const float> x) const;

  bool operator==(const DenseModule& other) const {
    return inputs == other.inputs && outputs == other.outputs && curve == other.curve &&
           digest == other.digest;
  }
};

// The module that stands in a directory: config.json and model.safetensors. Throws Error where they
// do not fit together, and for another activation.
DenseModule read_dense_module(const std::string& directory);
// That of the tensors named `name`.weight and, where there is one, `name`.bias. Throws Error.
DenseModule dense_of(const TensorSource& tensors, const std::string& name,
                     DenseModule::Curve curve);
// The curve of torch's class, "torch.nn.modules.activation.Tanh". Throws Error; `where` begins it.
DenseModule::Curve curve_of(const std::string& name, const std::string& where);

json::Value to_json(const DenseModule& module);

}  // namespace invar
