// A model directory as Hugging Face lays it out: config.json, generation_config.json, and the
// weights as model.safetensors or as shards under model.safetensors.index.json. Where one is named
// there may be a GGUF file in its place, whose metadata says the same.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "weights/tensor_source.h"

namespace invar {

struct HfDirectory {
  std::string path;
  json::Value config;             // an object
  json::Value generation_config;  // an object, or null when there is none
};

// Reads the two configurations; the weights need not be there. Throws Error when this is not a
// model directory.
HfDirectory open_hf_directory(const std::string& path);

// The texts of the tokenizer's files, by name: those that are there of tokenizer.json,
// tokenizer.model, tokenizer_config.json, special_tokens_map.json, added_tokens.json, tekken.json
// and chat_template.jinja.
std::map<std::string, std::string> model_texts(const std::string& model);

// Opens the weights of a model directory (a single file comes before an index, as elsewhere).
// Throws Error on a malformed file, an index without its shard, a shard outside the directory, a
// tensor that the index misplaces, and a tensor that stands in two shards.
std::unique_ptr<TensorSource> open_checkpoint(const std::string& directory);
// The tensors of one safetensors file in a directory. Throws Error on a malformed one.
std::unique_ptr<TensorSource> open_tensors(const std::string& directory, const std::string& file);

}  // namespace invar
