// A row of logits while filters work on it: values by token, and the largest of every 32, so that
// whole blocks can be passed over.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace invar {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// The order in which tokens are preferred: larger values first, ties by the lower id.
struct Ranked {
  float value;
  int32_t token;
  bool before(const Ranked& other) const {
    return value > other.value || (value == other.value && token < other.token);
  }
  bool operator==(const Ranked&) const = default;
};

class LogitRow {
 public:
  static constexpr int kBlock = 32;

  // Takes values[i] = logits[i]. False when one of them is NaN.
  bool assign(std::span<const float> logits);
  // values[i] = logits[i] / divisor; the rest as assign.
  bool assign_quotients(std::span<const float> logits, float divisor);
  // values[i] = values[i] / divisor.
  void divide(float divisor);
  // Brings the block maxima up to date after single values were changed.
  void update_maxima();

  std::span<float> values() { return {values_.data(), size_}; }
  std::span<const float> values() const { return {values_.data(), size_}; }
  // Padded with kExcluded to whole blocks.
  std::span<float> padded_values() { return values_; }
  // The values of tokens 32 * block .. 32 * block + 31.
  const float* block(int32_t index) const { return &values_[index * kBlock]; }
  int32_t num_blocks() const { return static_cast<int32_t>(maxima_.size()); }
  float block_max(int32_t index) const { return maxima_[index]; }
  // The first of the tokens with the largest value. REQUIRES: the row is not empty.
  Ranked largest() const;

  // The k-th token in order of preference, or {kExcluded, .} when fewer are not excluded.
  Ranked kth(int32_t k);
  // The first k tokens in order, fewer when the others are excluded. Valid until the next call.
  std::span<const Ranked> first(int32_t k);
  // Excludes every token after `last`.
  void cut_after(Ranked last);

 private:
  void resize(size_t size);
  // Fills candidates_ with at least k tokens, all those that could be among the first k.
  void collect_candidates(int32_t k);

  size_t size_ = 0;
  std::vector<float> values_;
  std::vector<float> maxima_;
  std::vector<float> order_;  // of maxima
  std::vector<Ranked> candidates_;
};

}  // namespace invar
