// Model directories as GGUF files, and quantised models as the bf16 directories that they stand
// for.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "model/families/conversion.h"
#include "numerics/dtype.h"

namespace invar {

// Writes the GGUF file `to`, which must be new, from the directory `from`, whose matrices are not
// quantised. They become `type`: bf16, or q8_0, q4_0 or q4_k by ggml's rules (numerics/quantise.h).
// The embedding and the head are q8_0 beside 4 bits, and so is a matrix whose rows are not whole
// blocks; where they are not whole blocks of 32 either it is bf16. Vectors are f32. Throws Error
// where a GGUF file cannot say what the model is: its metadata is read back and compared.
void write_gguf_model(const std::string& from, const std::string& to, DType type, ThreadPool& pool,
                      const Conversion& how = {});

// Writes into the directory `to`, which must hold no weights yet, the bf16 model that `from` stands
// for (numerics 0.1): a GGUF file with blocks, or a directory with a quantization_config. Throws
// Error where nothing is quantised.
void write_dequantised(const std::string& from, const std::string& to, ThreadPool& pool,
                       const Conversion& how = {});

}  // namespace invar
