// A model directory of bf16 as one whose q, k, v, o, gate, up and down are numbers of 8 bits:
// integers with a scale for each output, compressed-tensors' W8A8 (numerics 2.1), e4m3 numbers with
// one for each block of 128 x 128, as DeepSeek and Qwen publish FP8 (numerics 2.2), or with one for
// each output, compressed-tensors' FP8 (numerics 2.5).
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "base/thread_pool.h"
#include "model/families/conversion.h"
#include "model/families/families.h"
#include "weights/hf_directory.h"

namespace invar {

// The quantization_config of such models.
json::Value w8a8_config();
json::Value fp8_config();
json::Value fp8_row_config();

// Writes `to`, which must hold no weights yet, from `from`. A weight w becomes q = w / s rounded to
// the nearest, ties to even; s, an f32, is the largest |w| of its output / 127 (1 where that is 0).
// Files beside weights and config.json are copied. Throws Error when `from` is no model of bf16 or
// `to` cannot be written.
void write_w8a8(const std::string& from, const std::string& to, ThreadPool& pool,
                const Conversion& how = {});

// The same with numbers of e4m3; s is the largest |w| of the block / 448, in `weight_scale_inv`.
void write_fp8(const std::string& from, const std::string& to, ThreadPool& pool,
               const Conversion& how = {});
// The same; s is the largest |w| of the output / 448, in `weight_scale`.
void write_fp8_row(const std::string& from, const std::string& to, ThreadPool& pool,
                   const Conversion& how = {});

// A model directory that is made into another one, with what its config.json says and its tensors
// as they are stored.
struct UnquantisedCheckpoint {
  HfDirectory directory;
  ModelConfig config;
  std::unique_ptr<TensorSource> stored;
};
// Throws Error where the weights are quantised or are not what config.json says.
UnquantisedCheckpoint open_unquantised(const std::string& from, const Conversion& how);

// Copies the files of a model's directory that stand beside weights and config.json.
void copy_texts(const std::string& from, const std::string& to);

}  // namespace invar
