// A decoder whose layers have states, and sequences of it whose rows a test cuts as it likes.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "decoder_runs.h"
#include "model/parts/part_of.h"

namespace invar::testing_model {

class CellDecoder {
 public:
  // Another part may take the first one's place.
  explicit CellDecoder(const DecoderSpec& spec, const Arithmetic& arithmetic = {},
                       std::unique_ptr<LayerPart> first = nullptr)
      : spec_(std::make_unique<DecoderSpec>(spec)), pool_(std::make_unique<ThreadPool>(1)) {
    const Shard whole_model = make_shard(*spec_, 0, 1);
    const auto source = dummy_weights(*spec_, 3);
    weights_ = std::make_unique<DecoderWeights>(*spec_, arithmetic, whole_model, *source, *device_,
                                                *pool_);
    decoder_ =
        std::make_unique<Decoder>(*spec_, arithmetic, select_kernels(arithmetic.order, "auto"),
                                  *weights_, *device_, pool_.get());
    std::vector<StateShape> shapes = states_of(*spec_);
    if (first) {
      shapes = {first->state()};
      decoder_->parts[0][0] = std::move(first);
    }
    store_ = std::make_unique<SequenceStore>(*device_, shapes,
                                             StoreOptions{.blocks = (kSequences + 2) * kBlocks,
                                                          .cells = kSequences,
                                                          .scratch = {16, 8},
                                                          .type = arithmetic.cache});
    workspace_ = std::make_unique<Workspace>(*decoder_, 640, 640);
  }

  std::vector<int32_t> tokens(int count, int seed = 3) const {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back((i * i * 7 + i * seed) % spec_->vocab);
    return tokens;
  }

  // The rows of pieces of sequences, and drafts behind them; logits of all rows.
  Logits run(std::vector<BatchRow> rows) {
    const ScopedFlushToZero flush;
    batch_ = {};
    batch_.rows = std::move(rows);
    for (int32_t s = 0; s <= batch_.rows.back().sequence; ++s) {
      batch_.sequences.push_back({{}, s});
      for (int32_t i = 0; i < kBlocks; ++i)
        batch_.sequences.back().blocks.push_back(s * kBlocks + i);
    }
    for (int32_t i = 0; i < scratch_blocks_needed(batch_.rows, 32); ++i)
      batch_.scratch_blocks.push_back(kSequences * kBlocks + i);
    for (size_t i = 0; i < batch_.rows.size(); ++i)
      batch_.logit_rows.push_back(static_cast<int32_t>(i));
    ForwardIo io;
    forward(*decoder_, batch_, *store_, *workspace_, solo_group(), io);
    Logits logits;
    for (size_t begin = 0; begin < io.logits.size(); begin += static_cast<size_t>(spec_->vocab))
      logits.emplace_back(io.logits.begin() + static_cast<int64_t>(begin),
                          io.logits.begin() + static_cast<int64_t>(begin) + spec_->vocab);
    return logits;
  }

  // Takes over a draft path of the first sequence.
  void accept(int32_t last) {
    std::vector<CellCopy> chunks, states;
    std::vector<SlotCopy> slots;
    const auto& builder = workspace_->table_builder;
    builder.cell_placement().accept(batch_.rows, last, 0, chunks, states);
    builder.placement().accept(batch_.rows, last, batch_.sequences[0].blocks, slots);
    for (int layer = 0; layer < spec_->layers; ++layer) {
      copy(store_->chunks(layer), chunks);
      copy(store_->states(layer), states);
      if (store_->layer(layer).kv_heads > 0)
        decoder_->kernels.copy_slots({store_->layer(layer), slots.data(), std::ssize(slots)}, {});
    }
  }

  // What chunks before the last boundary left.
  void forget_states() {
    for (int layer = 0; layer < spec_->layers; ++layer)
      if (const Cells states = store_->states(layer); states.bytes > 0)
        std::memset(states.data, 0, static_cast<size_t>(kSequences * states.bytes));
  }

  static constexpr int kSequences = 3;

 private:
  static constexpr int kBlocks = 8;  // of a sequence

  void copy(Cells cells, const std::vector<CellCopy>& copies) {
    if (cells.bytes > 0)
      decoder_->kernels.copy_cells({cells, copies.data(), std::ssize(copies)}, {});
  }

  std::unique_ptr<Device> device_ = make_host_device();
  std::unique_ptr<DecoderSpec> spec_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<DecoderWeights> weights_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<SequenceStore> store_;
  std::unique_ptr<Workspace> workspace_;
  Batch batch_;
};

// Positions [begin, end) of a sequence.
inline std::vector<BatchRow> piece(const std::vector<int32_t>& tokens, int begin, int end,
                                   int32_t sequence = 0) {
  std::vector<BatchRow> rows;
  for (int i = begin; i < end; ++i)
    rows.push_back({.token = tokens[static_cast<size_t>(i)], .position = i, .sequence = sequence});
  return rows;
}

// The same in pieces of random lengths. Drafts stand behind some: a right path, which is accepted,
// beside a wrong one.
inline Logits in_pieces(CellDecoder& decoder, const std::vector<int32_t>& tokens, uint32_t seed) {
  std::mt19937 random(seed);
  const int count = static_cast<int>(tokens.size());
  Logits all;
  while (std::ssize(all) < count) {
    const int begin = static_cast<int>(all.size());
    const int most = std::min<int>(count - begin, random() % 3 == 0 ? 90 : 5);
    const int end = begin + 1 + static_cast<int>(random() % static_cast<uint32_t>(most));
    std::vector<BatchRow> rows = piece(tokens, begin, end);
    const int drafts = std::min(count - end, static_cast<int>(random() % 6));
    const int32_t root = static_cast<int32_t>(rows.size()) - 1;
    for (int i = 0; i < drafts; ++i) {
      const int32_t parent = i == 0 ? root : root + 2 * i - 1;
      const int32_t position = end + i;
      rows.push_back({tokens[static_cast<size_t>(position)], position, 0, parent});
      rows.push_back({(tokens[static_cast<size_t>(position)] + 1) % 7, position, 0, parent});
    }
    const Logits logits = decoder.run(rows);
    all.insert(all.end(), logits.begin(), logits.begin() + root + 1);
    for (int i = 0; i < drafts; ++i) all.push_back(logits[static_cast<size_t>(root + 1 + 2 * i)]);
    if (drafts > 0) decoder.accept(root + 2 * drafts - 1);
  }
  return all;
}

}  // namespace invar::testing_model
