#include "packed_weights.h"

#include <algorithm>

namespace invar::python {

namespace {

constexpr int64_t kPiece = int64_t{1} << 18;  // elements that are hashed at once

// Adds the hash of each piece of the rows, one after the other.
void add_hashes(const PackedWeights::Rows& rows, int64_t k, ThreadPool& pool,
                std::vector<XXH128_hash_t>& out) {
  const int64_t count = rows.n * k, pieces = (count + kPiece - 1) / kPiece;
  const size_t before = out.size();
  out.resize(before + static_cast<size_t>(pieces));
  pool.run([&](Part part) {
    const auto [begin, end] = part.of(pieces);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t size = std::min(kPiece, count - i * kPiece);
      out[before + static_cast<size_t>(i)] =
          XXH3_128bits(rows.w + i * kPiece, static_cast<size_t>(size) * sizeof(float));
    }
  });
}

}  // namespace

const Matrix& PackedWeights::of(const std::vector<Rows>& weights, int64_t k, bool is_pair,
                                ThreadPool& pool, const Pack& pack) {
  Hash hash;
  for (const Rows& one : weights) add_hashes(one, k, pool, hash);
  const auto is_it = [&](const Entry& entry) {
    return entry.k == k && entry.is_pair == is_pair &&
           std::ranges::equal(entry.weights, weights, {}, &Rows::n, &Rows::n) &&
           std::ranges::equal(entry.hash, hash,
                              [](auto a, auto b) { return XXH128_isEqual(a, b) != 0; });
  };
  if (const auto found = std::ranges::find_if(entries_, is_it); found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front().matrix;
  }
  // The entry of these tensors before.
  const auto old = std::ranges::find(entries_, weights, &Entry::weights);
  if (old != entries_.end()) {
    bytes_ -= old->memory.size() * sizeof(bf16_t);
    entries_.erase(old);
  }
  Entry& made = entries_.emplace_front(
      Entry{.weights = weights, .k = k, .is_pair = is_pair, .hash = std::move(hash)});
  made.matrix = pack(made.memory);
  bytes_ += made.memory.size() * sizeof(bf16_t);
  ++made_;
  while (bytes_ > kMostBytes && entries_.size() > 1) {
    bytes_ -= entries_.back().memory.size() * sizeof(bf16_t);
    entries_.pop_back();
  }
  return made.matrix;
}

}  // namespace invar::python
