// A decoder of a few numbers, whose layers a test names.
#pragma once

#include "model/families/families.h"

namespace invar::testing_model {

inline DecoderSpec small_spec(int hidden, int layers) {
  return {.family = "llama",
          .hidden = hidden,
          .layers = layers,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .vocab = 70,
          .max_positions = 256,
          .norm_eps = 1e-5f};
}

}  // namespace invar::testing_model
