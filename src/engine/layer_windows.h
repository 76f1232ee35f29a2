// How far back the layers of a model see.
#pragma once

#include <algorithm>
#include <vector>

#include "model/decoder_spec.h"
#include "scheduler/step_work.h"

namespace invar {

inline std::vector<LayerWindow> layer_windows(const DecoderSpec& spec) {
  std::vector<LayerWindow> windows;
  for (const LayerSpec& layer : spec.layer_specs) {
    const auto same = std::ranges::find(windows, layer.attention.window, &LayerWindow::window);
    if (same == windows.end())
      windows.push_back({layer.attention.window, 1});
    else
      ++same->layers;
  }
  return windows;
}

}  // namespace invar
