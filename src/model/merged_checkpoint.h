// A model directory with an adapter added to its weights: another model, whose bits are not those
// of the model with the adapter beside it (numerics 2.4).
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "model/families/conversion.h"

namespace invar {

// Writes `to`, which must hold no weights yet, from `from` and an adapter as PEFT saves it. Where a
// matrix has an adapter, its elements become W + s * (B A), rounded to the type that they are
// stored in; B A is a chain of fma over the rank, ascending, and all else f32. Files beside weights
// are copied. Throws Error where the adapter is not of this model, or its matrices are not of BF16
// or F32.
void write_merged(const std::string& from, const std::string& adapter, const std::string& to,
                  ThreadPool& pool, const Conversion& how = {});

}  // namespace invar
