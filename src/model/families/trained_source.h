// Translates a trainer's tensors, which have the decoder's names, into a family's checkpoint, and
// back.
// Where the decoder's is 1 + w, a trainer has w.
#pragma once

#include <memory>

#include "model/families/family_source.h"

namespace invar {

// Whether stored_form can write a family's checkpoints.
bool has_stored_form(const DecoderSpec& spec);
// `trained` as the family stores it.
std::unique_ptr<TensorSource> stored_form(const DecoderSpec& spec, const TensorSource& trained);
// `trained` as the decoder's tensors; null where it is these already.
std::unique_ptr<TensorSource> decoder_form(const DecoderSpec& spec, const TensorSource& trained);
// A checkpoint as a trainer has it.
std::unique_ptr<TensorSource> trained_form(const DecoderSpec& spec, const TensorSource& stored);

}  // namespace invar
