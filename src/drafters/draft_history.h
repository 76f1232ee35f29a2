// Keys and values of a drafter's layer whose rows depend on the token that follows: row i of a
// sequence on its tokens 0 .. i + 1. Full blocks are kept under those tokens, so that a sequence
// whose beginning the target had in its prefix cache finds the drafter's part of it. What is not
// found is never computed again: the sequence is not drafted for.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "drafters/eagle_layer.h"

namespace invar {

class DraftHistory {
 public:
  static constexpr int32_t kBlock = 32;  // divides the target's block sizes

  // `width`: of a row's key, and of its value. `blocks`: that there may be.
  DraftHistory(int32_t width, int64_t blocks) : width_(width), most_(blocks) {}

  class Rows;
  int64_t blocks_in_use() const { return *in_use_; }

 private:
  struct Block {
    Block(std::shared_ptr<int64_t> counter, size_t numbers)
        : keys(numbers), values(numbers), counter(std::move(counter)) {
      ++*this->counter;
    }
    ~Block() { --*counter; }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::vector<float> keys, values;
    std::shared_ptr<int64_t> counter;
  };
  using BlockPtr = std::shared_ptr<Block>;
  struct Kept {
    uint64_t key;
    BlockPtr block;
  };

  // Null when there is no room: all blocks are of live sequences.
  BlockPtr allocate();
  void keep(uint64_t key, const BlockPtr& block);
  BlockPtr find(uint64_t key);

  const int32_t width_;
  const int64_t most_;
  std::shared_ptr<int64_t> in_use_ = std::make_shared<int64_t>(0);
  std::list<Kept> kept_;  // the latest first
  std::unordered_map<uint64_t, std::list<Kept>::iterator> by_key_;
};

// Of one sequence.
class DraftHistory::Rows {
 public:
  explicit Rows(DraftHistory& history) : history_(&history) {}

  int32_t size() const { return size_; }
  void clear();
  // Goes on from the blocks that are kept for the first `rows` rows of these tokens. False when
  // they are not all there.
  bool restore(std::span<const int32_t> tokens, int32_t rows);
  // Adds row size(). False when there is no room.
  bool add(std::span<const int32_t> tokens, std::span<const float> key,
           std::span<const float> value);
  // Appends what a row that follows the first `rows` reads.
  void append_runs(int32_t rows, std::vector<KvRun>& runs) const;

 private:
  static uint64_t next_key(uint64_t key, std::span<const int32_t> tokens, int32_t block);

  DraftHistory* history_;
  std::vector<BlockPtr> blocks_;
  uint64_t key_ = 0;  // of the full ones
  int32_t size_ = 0;
};

}  // namespace invar
