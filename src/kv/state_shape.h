// The state that a sequence leaves in a layer, as plain data. A part says it, the store makes it,
// and cache_budget counts it.
#pragma once

#include <cstdint>

namespace invar {

struct StateShape {
  // For each position: keys and values, in blocks. No heads: none.
  int kv_heads = 0, head_dim = 0;
  int index_dim = 0;  // of a key of the layer's indexer, in the same blocks; 0: it has none
  // For each sequence, in cells: the rows since the last boundary, and the state at that boundary.
  // 0: none.
  int64_t chunk_bytes = 0, state_bytes = 0;
  int64_t f32_chunk_bytes = 0, f32_state_bytes = 0;  // the same where keys and values are f32

  bool operator==(const StateShape&) const = default;
};

// Cells that a step may overwrite, beside those of sequences: so many chunks and states.
struct ScratchCells {
  int32_t chunks = 0, states = 0;
};

}  // namespace invar
