// Ways to run the same sequences: whole or in chunks, alone or among neighbours, as trees. All of
// them give one hash per position.
#pragma once

#include <map>
#include <random>
#include <vector>

#include "engine/executor.h"
#include "kv/placement.h"
#include "numerics/logits_hash.h"

namespace invar::testing_model {

using Tokens = std::vector<int32_t>;
// Hash of the logits at every position of a sequence.
using Digests = std::vector<Digest>;

inline Tokens random_tokens(int count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

// Runs sequences step by step; the caller says how many rows of each go into a step.
class Stepper {
 public:
  Stepper(Executor& runner, std::vector<Tokens> sequences)
      : runner_(runner),
        sequences_(std::move(sequences)),
        done_(sequences_.size(), 0),
        digests_(sequences_.size()) {
    // Interleaved blocks, so that a sequence's blocks are not neighbours.
    const int count = static_cast<int>(sequences_.size());
    for (int s = 0; s < count; ++s) {
      const int slots = runner.limits().block_size;
      const int needed = (static_cast<int>(sequences_[s].size()) + slots - 1) / slots;
      blocks_.emplace_back();
      for (int i = 0; i < needed; ++i) blocks_[s].blocks.push_back(i * count + s);
    }
  }

  int left(int s) const { return static_cast<int>(sequences_[s].size()) - done_[s]; }

  // Says that the first `slots` slots of a sequence have been computed by someone else.
  void skip(int s, int slots) { done_[s] = slots; }

  // One step: rows[s] further rows of sequence order[s].
  void step(const std::vector<std::pair<int, int>>& sequence_and_rows) {
    Batch batch;
    std::vector<std::pair<int, int>> where;
    for (const auto& [s, rows] : sequence_and_rows) {
      batch.sequences.push_back(blocks_[s]);
      for (int i = 0; i < rows; ++i, ++done_[s]) {
        where.emplace_back(s, done_[s]);
        batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
        batch.rows.push_back(
            {sequences_[s][done_[s]], done_[s], static_cast<int32_t>(batch.sequences.size()) - 1});
      }
    }
    ForwardIo io;
    runner_.run(batch, io);
    const size_t vocab = runner_.model().spec().vocab;
    for (size_t i = 0; i < where.size(); ++i)
      digests_[where[i].first].push_back(hash_(io.logits.subspan(i * vocab, vocab)));
  }

  const std::vector<Digests>& digests() const { return digests_; }
  const std::vector<BatchSequence>& blocks() const { return blocks_; }

 private:
  Executor& runner_;
  std::vector<Tokens> sequences_;
  std::vector<BatchSequence> blocks_;
  std::vector<int> done_;
  std::vector<Digests> digests_;
  PositionHasher hash_;
};

// Every sequence alone, one row at a time.
inline std::vector<Digests> one_by_one(Executor& runner, const std::vector<Tokens>& sequences) {
  std::vector<Digests> all;
  for (const Tokens& tokens : sequences) {
    Stepper stepper(runner, {tokens});
    while (stepper.left(0) > 0) stepper.step({{0, 1}});
    all.push_back(stepper.digests()[0]);
  }
  return all;
}

// All sequences together in random chunks, in random order of places in the batch.
inline std::vector<Digests> random_schedule(Executor& runner, const std::vector<Tokens>& sequences,
                                            uint32_t seed, int max_chunk) {
  std::mt19937 random(seed);
  Stepper stepper(runner, sequences);
  for (;;) {
    std::vector<std::pair<int, int>> step;
    for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
      const int rows = std::min<int>(stepper.left(s), static_cast<int>(random() % (max_chunk + 1)));
      if (rows > 0) step.emplace_back(s, rows);
    }
    std::shuffle(step.begin(), step.end(), random);
    if (!step.empty()) stepper.step(step);
    bool any = false;
    for (int s = 0; s < static_cast<int>(sequences.size()); ++s) any |= stepper.left(s) > 0;
    if (!any) return stepper.digests();
  }
}

// A draft tree of one sequence whose first slot is `base`.
struct Tree {
  std::vector<BatchRow> rows;  // rows[0] is the root, a trunk row
  std::vector<Tokens> path;    // tokens from the root to each row
};

// Level by level, so that rows are in ascending position.
inline Tree random_tree(int base, int max_depth, int max_width, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  Tree tree;
  const auto add = [&](int parent) {
    const int32_t token = static_cast<int32_t>(random() % vocab);
    Tokens path = parent < 0 ? Tokens{} : tree.path[parent];
    path.push_back(token);
    tree.rows.push_back({token, base + static_cast<int>(path.size()) - 1, 0, parent});
    tree.path.push_back(path);
  };
  add(-1);
  for (int depth = 1, level = 0; depth <= max_depth; ++depth) {
    const int end = static_cast<int>(tree.rows.size());
    const int width = 1 + static_cast<int>(random() % max_width);
    for (int i = 0; i < width && level < end; ++i)
      add(level + static_cast<int>(random() % (end - level)));
    level = end;
  }
  return tree;
}

// One step of the whole tree, in blocks 0, 1, ... with scratch blocks from 8 on.
inline Batch batch_of(const Tree& tree, int base, int block_size) {
  Batch batch;
  batch.sequences.emplace_back();
  for (int i = 0; i < (base + 9 + block_size - 1) / block_size; ++i)
    batch.sequences[0].blocks.push_back(i);
  batch.rows = tree.rows;
  for (size_t i = 0; i < tree.rows.size(); ++i) batch.logit_rows.push_back(static_cast<int>(i));
  const int scratch = scratch_blocks_needed(batch.rows, block_size);
  for (int i = 0; i < scratch; ++i) batch.scratch_blocks.push_back(8 + i);
  return batch;
}

}  // namespace invar::testing_model
