#include "drafters/layer_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/executor.h"
#include "numerics/noise.h"

namespace invar {

namespace {

constexpr int kRows = 48, kBlockSize = 64;
constexpr double kShare = 0.45;

class LayerSearch {
 public:
  LayerSearch(Model& target, ThreadPool* threads)
      : spec_(target.spec()),
        vocab_(target.spec().vocab),
        layers_(target.spec().layers),
        executor_(
            target,
            {.blocks = 1, .block_size = kBlockSize, .max_rows = kRows, .max_logit_rows = kRows},
            threads) {}

  std::vector<int> search(int count) {
    make_text();
    std::vector<int> skipped;
    while (std::ssize(skipped) < count) {
      double best = -std::numeric_limits<double>::infinity();
      std::vector<int> best_set;
      for (int layer = 1; layer < layers_ - 1; ++layer) {
        if (std::ranges::binary_search(skipped, layer) || spec_.is_shared(layer)) continue;
        std::vector<int> set = skipped;
        set.insert(std::ranges::upper_bound(set, layer), layer);
        if (const double found = score_without(set); best_set.empty() || found > best) {
          best = found;
          best_set = std::move(set);
        }
      }
      if (best_set.empty()) break;
      skipped = std::move(best_set);
    }
    return skipped;
  }

 private:
  std::span<const float> run(int first, int count, const std::vector<int>& skipped = {}) {
    Batch batch{.skipped_layers = skipped};
    batch.sequences.push_back({.blocks = {0}, .cell = 0});
    for (int row = first; row < first + count; ++row) {
      batch.rows.push_back({.token = text_[row], .position = row});
      batch.logit_rows.push_back(row - first);
    }
    executor_.run(batch, io_);
    return io_.logits;
  }

  // Sampled, since greedy text soon repeats itself.
  void make_text() {
    text_ = {0};
    for (int row = 0; row < kRows; ++row) {
      const std::span<const float> logits = run(row, 1);
      argmax_.push_back(static_cast<int>(std::ranges::max_element(logits) - logits.begin()));
      std::pair<double, int32_t> best = {-std::numeric_limits<double>::infinity(), 0};
      for (int32_t token = 0; token < vocab_; ++token) {
        const NoiseKey key{.position = static_cast<uint32_t>(row + 1)};
        const double value =
            logits[token] + gumbel_of(random_bits(key, static_cast<uint32_t>(token)));
        best = std::max(best, {value, token});
      }
      text_.push_back(best.second);
    }
  }

  // The mean logarithm of the probability of what the whole target finds likeliest.
  double score_without(const std::vector<int>& skipped) {
    const std::span<const float> logits = run(0, kRows, skipped);
    double score = 0;
    for (int row = 0; row < kRows; ++row) {
      const auto of_row = logits.subspan(static_cast<size_t>(row) * vocab_, vocab_);
      const double max = std::ranges::max(of_row);
      const double sum =
          std::accumulate(of_row.begin(), of_row.end(), 0.0,
                          [&](double so_far, float x) { return so_far + std::exp(x - max); });
      score += of_row[argmax_[row]] - max - std::log(sum);
    }
    return score / kRows;
  }

  const DecoderSpec& spec_;
  const int vocab_, layers_;
  Executor executor_;
  ForwardIo io_;
  std::vector<int32_t> text_;
  std::vector<int> argmax_;  // after each of its tokens
};

}  // namespace

std::vector<int> search_layers_to_skip(Model& target, ThreadPool* threads) {
  const int layers = target.spec().layers;
  const int count = std::clamp(static_cast<int>(std::lround(kShare * layers)), 1, layers - 2);
  return LayerSearch(target, threads).search(count);
}

}  // namespace invar
