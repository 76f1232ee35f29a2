// Checkpoints whose experts are stored as MXFP4 (gpt-oss): blocks of 32 numbers of 4 bits, and for
// each block a power of two (numerics 0.1).
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "weights/tensor_source.h"

namespace invar {

// Whether a config.json's quantization_config says so. Throws Error (`where` names the file) when
// it does with a key that nobody knows.
bool is_mxfp4(const json::Value& quantization, const std::string& where);

// The tensors of such a checkpoint: each pair of NAME_blocks, of U8 [..., K / 32, 16], and
// NAME_scales, of U8 [..., K / 32], as the tensor NAME_blocks of mxfp4 [..., K]. Throws Error where
// their shapes do not fit.
std::unique_ptr<TensorSource> mxfp4_tensors(std::unique_ptr<TensorSource> stored);

}  // namespace invar
