// Models with random weights: for tests, benchmarks and the demo. The same seed gives the same bits
// as a directory (make_model) and in place (dummy_weights).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "model/families/families.h"
#include "weights/checkpoint_writer.h"
#include "weights/tensor_source.h"

namespace invar {

// Every tensor of the spec, roughly normal, as bf16. Activations stay near 1 at any depth,
// attention prefers some places to others, and logits have a deviation of about 2.5, so that greedy
// text depends on its prompt.
std::unique_ptr<TensorSource> dummy_weights(const DecoderSpec& spec, uint64_t seed);

using NamedTexts = std::vector<std::pair<std::string, std::string>>;  // a file's name, its content

// Writes what a model directory holds besides weights: the files of its tokenizer, then
// generation_config.json, then config.json. Each appears whole or not at all. Throws Error.
void write_model_texts(const std::string& directory, const ModelConfig& config,
                       const NamedTexts& tokenizer_files);

// Writes the weights into a directory, which must hold none yet, then the texts: a directory with a
// config.json is whole. Throws Error.
void make_model(const std::string& directory, const ModelConfig& config, uint64_t seed,
                ThreadPool& pool, const NamedTexts& tokenizer_files = {},
                const CheckpointOptions& options = {});

}  // namespace invar
