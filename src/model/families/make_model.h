// Models with random weights: for tests, benchmarks and the demo. The same seed gives the same bits
// as a directory (make_model) and in place (dummy_weights).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "model/families/families.h"
#include "weights/checkpoint_writer.h"
#include "weights/tensor_source.h"

namespace invar {

// Every tensor of the spec, roughly normal, as bf16. Activations stay near 1 at any depth,
// attention prefers some places to others, and logits have a deviation of about 2.5, so that greedy
// text depends on its prompt.
std::unique_ptr<TensorSource> dummy_weights(const DecoderSpec& spec, uint64_t seed);

// Writes config.json, generation_config.json and the weights into a directory, which must hold no
// weights yet. The tokenizer's files are its owner's matter. Throws Error.
void make_model(const std::string& directory, const ModelConfig& config, uint64_t seed,
                ThreadPool& pool, const CheckpointOptions& options = {});

}  // namespace invar
