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

// Throws Error where a layer has no backward, or where weights could not be written as the family
// stores them.
void expect_trainable(const DecoderSpec& spec);

}  // namespace invar
