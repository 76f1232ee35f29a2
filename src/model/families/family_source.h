// A family's checkpoint as the tensors of the decoder: renamed, fused ones taken apart, rows in the
// decoder's order, 1 added to weights that stand for 1 + w.
#pragma once

#include <memory>

#include "model/families/family.h"
#include "weights/tensor_source.h"

namespace invar {

// `stored` where its tensors are the decoder's already.
std::unique_ptr<TensorSource> decoder_tensors(const DecoderSpec& spec,
                                              std::unique_ptr<TensorSource> stored);
// The same beside its owner.
std::unique_ptr<TensorSource> decoder_tensors(const DecoderSpec& spec, const TensorSource& stored);
// The same, but for w where the decoder has 1 + w.
std::unique_ptr<TensorSource> decoder_tensors_without_offsets(const DecoderSpec& spec,
                                                              const TensorSource& stored);
// A model that reads images, too, has its text's part under another name, which tools of different
// ages write differently: the name under which `stored` has a tensor of the text's part, and a
// tensor's or module's name where there is that part alone.
std::string in_tower(const TensorSource& stored, const std::string& name);
std::string without_tower(const std::string& name);
// Whether a family's checkpoints hold other tensors than the decoder's.
bool stores_otherwise(const DecoderSpec& spec);
// Whether they hold the decoder's but for w where the decoder has 1 + w, in its vectors.
bool stores_offsets(const DecoderSpec& spec);
// Whether w is stored where the decoder has 1 + w.
bool is_stored_as_offset(const DecoderSpec& spec, const TensorSpec& tensor);

// The tensors of a checkpoint of the family, in the order of computation, each with those of the
// decoder's that it holds.
struct StoredTensor {
  struct Part {
    TensorSpec of;
    StoredAt at;
  };
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Part> parts;
};
std::vector<StoredTensor> stored_tensors(const DecoderSpec& spec);
// The same of a GGUF file.
std::vector<StoredTensor> gguf_tensors(const DecoderSpec& spec);

// Whether the module of multi-token prediction reads hidden states behind the model's final norm,
// and goes on from its own ones behind its own norm, as the published ones of Qwen, DeepSeek and
// GLM do; else before them, as those of our recipes do.
bool module_reads_output(const DecoderSpec& spec);

// Throws Error where a layer has no backward, or where weights could not be written as the family
// stores them.
void expect_trainable(const DecoderSpec& spec);

}  // namespace invar
