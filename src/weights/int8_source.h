// Checkpoints whose matrices are stored as integers for products of integers: compressed-tensors'
// W8A8, an integer of 8 bits for each weight and a scale for each output. numerics 2.1 says how
// activations are quantised.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "weights/tensor_source.h"

namespace invar {

// Whether a config.json's quantization_config asks for products of integers: compressed-tensors'
// with activations of integers. Others are packed_formats.h's.
bool asks_for_integers(const json::Value& quantization);
// Throws Error unless a config.json's quantization_config (`where` names the file) is W8A8: weights
// of 8 bits, symmetric, by channel; activations of 8 bits, symmetric, by token, dynamic.
void check_w8a8(const json::Value& quantization, const std::string& where);

// The tensors of such a checkpoint: each NAME.weight of I8 as a matrix of i8 whose rows have the
// scales of NAME.weight_scale ([rows, 1] or [rows], bf16 or f32). Read as bf16 or f32 it is its
// twin, bf16((f32)q * scale), which with `as_twin` is all that is seen of it. Throws Error where
// scales are missing or of another shape or type.
std::unique_ptr<TensorSource> int8_tensors(std::unique_ptr<TensorSource> stored, bool as_twin);

}  // namespace invar
