// A model without its weights: its specification and its arithmetic.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "base/sha256.h"
#include "base/thread_pool.h"
#include "engine/model_options.h"
#include "kernels/inference.h"
#include "model/arithmetic.h"
#include "model/families/families.h"
#include "weights/tensor_source.h"

namespace invar {

struct ModelDescription {
  // Describes the model that the options name. `source` becomes its tensors. Throws Error when they
  // cannot be read and UsageError for options that make no sense.
  ModelDescription(const ModelOptions& options, std::unique_ptr<TensorSource>& source);

  const DecoderSpec& spec() const { return config.spec; }
  // Workers of this host's CPU that compute at the same time share the threads out among
  // themselves; each has one at least. Workers that a launcher started have the cores that it gave
  // them.
  int threads_of_rank(int threads) const {
    if (options.device != "cpu") return 1;
    const std::string executor = options.settled_executor();
    const int at_once = executor == "mpi" || executor == "hosts" ? 1 : stages();
    return std::max(1, threads / (options.ranks * at_once));
  }
  int stages() const { return static_cast<int>(options.layer_cuts.size()) + 1; }
  // Throws Error unless these are the tensors of the same model, or the configuration is of another
  // shape.
  void expect_same_model(const ModelConfig& other, const TensorSource& tensors) const;

  ModelOptions options;
  ModelConfig config;
  Arithmetic arithmetic;
  Kernels host_kernels;  // of the CPU, whatever the device: for what the host does with logits
};

// The configuration of the model that the options name. Throws Error when it cannot be read and
// UsageError when there is no such preset.
ModelConfig read_model_config(const ModelOptions& options);

// The tensors behind it. Throws Error when they cannot be opened.
std::unique_ptr<TensorSource> open_weights(const ModelOptions& options, const ModelConfig& config);
std::unique_ptr<TensorSource> open_weights(const ModelOptions& options);

// The digest of the weights that the options name, as they are stored (numerics 8).
// Reads all of them.
Digest weights_digest(const ModelOptions& options, ThreadPool& pool);

}  // namespace invar
