// Where a decoder's tensors stand in GGUF files: names, fused ones, and the order of rows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/families/family.h"
#include "weights/tensor_source.h"

namespace invar {

StoredAt gguf_place(const DecoderSpec& spec, const TensorSpec& tensor, const TensorSource& stored);
// Where a new file has it.
StoredAt gguf_place(const DecoderSpec& spec, const TensorSpec& tensor);
// Its name there, where it is not fused.
std::string gguf_name(const DecoderSpec& spec, const TensorSpec& tensor);
// Whether the family's queries and keys stand there with the elements that turn together side by
// side.
bool has_gguf_neighbours(std::string_view family);
// Whether files have the tensor in f32 whatever the model is stored in, or may have it so: where
// all its elements are bf16 numbers, it is a bf16 one.
bool is_gguf_router(TensorRole role);
bool may_be_f32_in_gguf(TensorRole role);
// Whether files hold a number of the configuration times the tensor, whose elements are bf16 ones.
bool is_gguf_folded(const DecoderSpec& spec, const TensorSpec& tensor);
// The embedding and head of a module that predicts further, which files have beside the model's:
// their names in files, and in directories.
std::vector<std::pair<std::string, std::string>> gguf_module_tensors(const DecoderSpec& spec);
// Tensors that config.json's numbers stand for.
bool is_gguf_constant(std::string_view name);
struct GgufConstant {
  std::string name;
  std::vector<float> numbers;
};
// Those that a file of the model must have.
std::vector<GgufConstant> gguf_constants(const DecoderSpec& spec);

}  // namespace invar
