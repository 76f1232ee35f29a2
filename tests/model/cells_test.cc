// A part with a state of each sequence and nothing of positions goes through the forward as
// attention does: whatever pieces, steps and drafts its rows come in.
#include <gtest/gtest.h>

#include <random>

#include "decoder_runs.h"
#include "model/families/presets.h"
#include "model/parts/part_of.h"

namespace invar {
namespace {

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

using Logits = std::vector<float>;

// A decoder whose first part is a running sum, and one sequence of it.
class Case {
 public:
  explicit Case(bool copies = true) : spec_(preset_spec("tiny")) {
    spec_.layers = 1;
    spec_.layer_specs.resize(1);
    const Shard whole_model = make_shard(spec_, 0, 1);
    const auto source = dummy_weights(spec_, 3);
    weights_.emplace(spec_, Arithmetic{}, whole_model, *source, *device_, pool_);
    decoder_.emplace(spec_, Arithmetic{}, select_kernels(Order::portable, "auto"), *weights_,
                     *device_, &pool_);
    auto sum = std::make_unique<RunningSum>(copies);
    sum->stride = spec_.hidden;
    decoder_->parts[0][0] = std::move(sum);
    store_.emplace(*device_, std::vector{RunningSum::kShape},
                   StoreOptions{.blocks = 16, .cells = 2, .scratch = {12, 8}});
    workspace_.emplace(*decoder_, 256, 256);
  }

  std::vector<int32_t> tokens(int count) const {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back((i * i * 7 + i * 3) % spec_.vocab);
    return tokens;
  }

  // The rows of a piece, and behind its last one drafts; logits of all rows.
  std::vector<Logits> run(std::vector<BatchRow> rows) {
    const ScopedFlushToZero flush;
    batch_ = {};
    batch_.rows = std::move(rows);
    batch_.sequences.push_back({{0, 1, 2, 3, 4, 5, 6, 7}, 1});
    for (int32_t i = 0; i < scratch_blocks_needed(batch_.rows, 32); ++i)
      batch_.scratch_blocks.push_back(8 + i);
    for (size_t i = 0; i < batch_.rows.size(); ++i)
      batch_.logit_rows.push_back(static_cast<int32_t>(i));
    ForwardIo io;
    invar::forward(*decoder_, batch_, *store_, *workspace_, solo_group(), io);
    std::vector<Logits> logits;
    for (size_t begin = 0; begin < io.logits.size(); begin += static_cast<size_t>(spec_.vocab))
      logits.emplace_back(io.logits.begin() + static_cast<int64_t>(begin),
                          io.logits.begin() + static_cast<int64_t>(begin) + spec_.vocab);
    return logits;
  }

  // Takes over a draft path.
  void accept(int32_t last) {
    std::vector<CellCopy> chunks, states;
    workspace_->table_builder.cell_placement().accept(batch_.rows, last, 1, chunks, states);
    const auto copy = [&](Cells cells, const std::vector<CellCopy>& copies) {
      decoder_->kernels.copy_cells({cells, copies.data(), std::ssize(copies)}, {});
    };
    copy(store_->chunks(0), chunks);
    copy(store_->states(0), states);
  }

 private:
  const std::unique_ptr<Device> device_ = make_host_device();
  ThreadPool pool_{1};
  DecoderSpec spec_;
  std::optional<DecoderWeights> weights_;
  std::optional<Decoder> decoder_;
  std::optional<SequenceStore> store_;
  std::optional<Workspace> workspace_;
  Batch batch_;
};

std::vector<BatchRow> piece(const std::vector<int32_t>& tokens, int begin, int end) {
  std::vector<BatchRow> rows;
  for (int i = begin; i < end; ++i)
    rows.push_back({.token = tokens[static_cast<size_t>(i)], .position = i});
  return rows;
}

constexpr int kTokens = 200;

std::vector<Logits> whole() {
  Case at_once;
  return at_once.run(piece(at_once.tokens(kTokens), 0, kTokens));
}

// The same in pieces of random lengths. Drafts stand behind some: a right path, which is accepted,
// beside a wrong one.
std::vector<Logits> in_pieces(uint32_t seed, bool copies) {
  std::mt19937 random(seed);
  Case cut(copies);
  const std::vector<int32_t> tokens = cut.tokens(kTokens);
  std::vector<Logits> all;
  while (std::ssize(all) < kTokens) {
    const int begin = static_cast<int>(all.size());
    const int most = std::min<int>(kTokens - begin, random() % 3 == 0 ? 90 : 5);
    const int end = begin + 1 + static_cast<int>(random() % static_cast<uint32_t>(most));
    std::vector<BatchRow> rows = piece(tokens, begin, end);
    const int drafts = std::min(kTokens - end, static_cast<int>(random() % 6));
    const int32_t root = static_cast<int32_t>(rows.size()) - 1;
    for (int i = 0; i < drafts; ++i) {
      const int32_t parent = i == 0 ? root : root + 2 * i - 1;
      const int32_t position = end + i;
      rows.push_back({tokens[static_cast<size_t>(position)], position, 0, parent});
      rows.push_back({(tokens[static_cast<size_t>(position)] + 1) % 7, position, 0, parent});
    }
    const std::vector<Logits> logits = cut.run(rows);
    all.insert(all.end(), logits.begin(), logits.begin() + root + 1);
    for (int i = 0; i < drafts; ++i) all.push_back(logits[static_cast<size_t>(root + 1 + 2 * i)]);
    if (drafts > 0) cut.accept(root + 2 * drafts - 1);
  }
  return all;
}

TEST(Cells, APartWithAStateHasTheSameBitsInEveryCut) {
  const std::vector<Logits> expected = whole();
  for (uint32_t seed = 0; seed < 8; ++seed) EXPECT_EQ(in_pieces(seed, true), expected) << seed;
}

TEST(Cells, WithoutTheCopiesOfChunksBitsDiffer) {
  const std::vector<Logits> expected = whole();
  bool differs = false;
  for (uint32_t seed = 0; seed < 8; ++seed) differs |= in_pieces(seed, false) != expected;
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace invar
