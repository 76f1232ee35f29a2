// The short convolution of a layer with a state.
#pragma once

#include "model/decoder_spec.h"

namespace invar {

// 0: the layer has none.
inline int taps_of(const LayerSpec& layer) {
  int taps = 0;
  for (const PartSpec& part : layer.parts)
    std::visit(
        [&](const auto& spec) {
          if constexpr (requires { spec.taps; }) taps = spec.taps;
        },
        part);
  return taps;
}

}  // namespace invar
