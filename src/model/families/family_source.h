// A family's checkpoint as the tensors of the decoder: renamed, fused ones taken apart, rows in the
// decoder's order, 1 added to weights that stand for 1 + w.
#pragma once

#include <memory>

#include "model/families/stored_places.h"
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

// Whether the module of multi-token prediction reads hidden states behind the model's final norm,
// and goes on from its own ones behind its own norm, as the published ones of Qwen, DeepSeek and
// GLM do; else before them, as those of our recipes do.
bool module_reads_output(const DecoderSpec& spec);

}  // namespace invar
