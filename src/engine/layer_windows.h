// How far back the layers of a model see.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/check.h"
#include "model/decoder_spec.h"
#include "scheduler/step_work.h"

namespace invar {

// A model has one or two.
using WindowRoom = std::array<LayerWindow, 8>;

// In `room`: every step asks, and takes no memory.
inline std::span<const LayerWindow> layer_windows(const DecoderSpec& spec, WindowRoom& room) {
  size_t count = 0;
  for (const LayerSpec& layer : spec.layer_specs) {
    const std::span<LayerWindow> found(room.data(), count);
    const auto same = std::ranges::find(found, layer.window(), &LayerWindow::window);
    if (same != found.end()) {
      ++same->layers;
      continue;
    }
    CHECK(count < room.size(), "a model has few windows");
    room[count++] = {layer.window(), 1};
  }
  return {room.data(), count};
}

inline std::vector<LayerWindow> layer_windows(const DecoderSpec& spec) {
  WindowRoom room;
  const std::span<const LayerWindow> found = layer_windows(spec, room);
  return {found.begin(), found.end()};
}

}  // namespace invar
