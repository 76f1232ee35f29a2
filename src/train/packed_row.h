// The trainer's input: documents, and rows of one length that hold whole documents side by side.
#pragma once

#include <cstdint>
#include <vector>

namespace invar {

struct Document {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> wanted;  // per token: whether the model is to learn to say it
};

// A row of `context` positions. Each document is a sequence of its own, from position 0; what is
// left over is one more sequence, which teaches nothing.
struct PackedRow {
  std::vector<int32_t> tokens;   // [context]
  std::vector<int32_t> targets;  // the token that follows; any where the weight is 0
  std::vector<float> weights;
  std::vector<int32_t> begins;  // where each sequence begins; the first is 0
  // Or empty: the experts that each position goes through, whatever the routers say: [context]
  // [layers with experts][chosen], ascending; the first is negative where the router decides.
  std::vector<int16_t> routes;
};

constexpr int kMaxSequencesPerRow = 32;

}  // namespace invar
