// A model directory of bf16 as one whose q, k, v, o, gate, up and down are integers of 8 bits, a
// scale for each output: compressed-tensors' W8A8, which Invar and others run (numerics 2.1).
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "base/thread_pool.h"

namespace invar {

// What config.json says of such a model.
json::Value w8a8_config();

// Writes `to`, which must hold no weights yet, from `from`. A weight w becomes q = w / s rounded to
// the nearest, ties to even; s, an f32, is the largest |w| of its output / 127 (1 where that is 0).
// Files beside weights and config.json are copied. `progress` is told bytes done and bytes in all.
// Throws Error when `from` is no model of bf16 or `to` cannot be written.
void write_w8a8(const std::string& from, const std::string& to, ThreadPool& pool,
                std::function<void(int64_t, int64_t)> progress = {});

}  // namespace invar
