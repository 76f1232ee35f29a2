// A part with a state of each sequence and nothing of positions goes through the forward as
// attention does: whatever pieces, steps and drafts its rows come in.
#include <gtest/gtest.h>

#include "cell_decoder.h"
#include "model/families/presets.h"

namespace invar {
namespace {

using namespace testing_model;

struct NoWeights : PartWeights {};
struct NoActivations : PartActivations {};

// h[0] = h[0] + what all rows so far and this one left; a row leaves a small whole number that its
// token says, so that sums are exact in any order.
class RunningSum final : public LayerPart {
 public:
  explicit RunningSum(bool copies = true) : copies_(copies) {}

  std::unique_ptr<PartWeights> make_weights() const override {
    return std::make_unique<NoWeights>();
  }
  void visit_tensors(PartWeights&, TensorVisitor&) const override {}
  StateShape state() const override { return kShape; }
  std::unique_ptr<PartActivations> place(ActivationMemory&) const override {
    return std::make_unique<NoActivations>();
  }
  void backward(const PartBackward&) const override {}

  void forward(const PartPass& p) const override {
    p.ops.settle();
    const CellTables& cells = p.ops.tables().cells;
    const auto chunk = [&](int32_t cell) { return p.chunks.at<float>(cell); };
    const auto state = [&](int32_t cell) -> float& { return *p.states.at<float>(cell); };
    for (int64_t i = 0; copies_ && i < cells.num_copies; ++i)
      std::copy_n(chunk(cells.copies[i].from), kBoundary, chunk(cells.copies[i].to));
    for (int64_t t = 0; t < p.rows; ++t)
      for (int32_t w = cells.write_begin[t]; w < cells.write_begin[t + 1]; ++w)
        chunk(cells.write_cell[w])[slot(p, t)] =
            static_cast<float>(p.ops.tables().tokens[t] % 13 - 5);
    for (int64_t t = 0; t < p.rows; ++t) {
      const int32_t position = p.ops.tables().positions[t];
      const float* own = chunk(cells.tables[cells.table_of[t]][position / kBoundary]);
      float sum = cells.state_of[t] < 0 ? 0 : state(cells.state_of[t]);
      for (int64_t s = 0; s <= slot(p, t); ++s) sum += own[s];
      if (cells.next_state[t] >= 0) state(cells.next_state[t]) = sum;
      p.hidden[t * stride] += sum / 64;
    }
  }

  static constexpr StateShape kShape{.chunk_bytes = kBoundary * sizeof(float),
                                     .state_bytes = sizeof(float)};
  int64_t stride = 0;  // of the residual stream

 private:
  static int64_t slot(const PartPass& p, int64_t t) {
    return p.ops.tables().positions[t] % kBoundary;
  }
  const bool copies_;
};

// A decoder whose first part is a running sum.
CellDecoder decoder_of(bool copies = true) {
  DecoderSpec spec = preset_spec("tiny");
  spec.layers = 1;
  spec.layer_specs.resize(1);
  auto sum = std::make_unique<RunningSum>(copies);
  sum->stride = spec.hidden;
  return CellDecoder(spec, {}, std::move(sum));
}

constexpr int kTokens = 200;

Logits whole() {
  CellDecoder decoder = decoder_of();
  return decoder.run(piece(decoder.tokens(kTokens), 0, kTokens));
}

Logits cut(uint32_t seed, bool copies) {
  CellDecoder decoder = decoder_of(copies);
  return in_pieces(decoder, decoder.tokens(kTokens), seed);
}

TEST(Cells, APartWithAStateHasTheSameBitsInEveryCut) {
  const Logits expected = whole();
  for (uint32_t seed = 0; seed < 8; ++seed) EXPECT_EQ(cut(seed, true), expected) << seed;
}

TEST(Cells, WithoutTheCopiesOfChunksBitsDiffer) {
  const Logits expected = whole();
  bool differs = false;
  for (uint32_t seed = 0; seed < 8; ++seed) differs |= cut(seed, false) != expected;
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace invar
