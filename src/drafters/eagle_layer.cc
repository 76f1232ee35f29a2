#include "drafters/eagle_layer.h"

#include <algorithm>
#include <cmath>

#include "model/rope_table.h"
#include "sampling/row.h"

namespace invar {

namespace {

constexpr int kLanes = 8;

float dot(const float* a, const float* b, int32_t count) {
  float sums[kLanes] = {};
  int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < count; ++i) sums[i % kLanes] += a[i] * b[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

void add_to(std::vector<float>& y, std::span<const float> x) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
}

}  // namespace

EagleLayer::EagleLayer(const EagleWeights& weights, HostProducts& products, ThreadPool& pool)
    : w_(weights),
      products_(products),
      pool_(pool),
      width_(weights.width()),
      query_width_(weights.spec.query_width()),
      kv_width_(weights.spec.kv_width()),
      head_dim_(weights.spec.head_dim),
      frequencies_(rotary_frequencies(weights.spec.layer(0).attention.rope, weights.spec.head_dim)),
      cos_(frequencies_.size()),
      sin_(frequencies_.size()),
      scores_(static_cast<size_t>(pool.size())) {}

std::vector<float> EagleLayer::fuse(std::span<const float> hidden) {
  std::vector<float> features(hidden.begin(), hidden.end());
  if (w_.kind == EagleKind::eagle3)
    products_.multiply(hidden, w_.fuse, w_.fuse_bias.empty() ? nullptr : w_.fuse_bias.data(),
                       features);
  return features;
}

// joined_: what meets the matrices of queries, keys and values; residual_: what the layer adds to.
void EagleLayer::join(std::span<const int32_t> tokens, std::span<const float> features) {
  const size_t d = static_cast<size_t>(width_), rows = tokens.size();
  std::vector<float> embedded(rows * d), hidden(features.begin(), features.end());
  for (size_t t = 0; t < rows; ++t) w_.embed(tokens[t], &embedded[t * d]);
  if (!w_.embedding_norm.empty())
    HostProducts::normalise(embedded, w_.embedding_norm, w_.spec.norm_eps);
  if (!w_.hidden_norm.empty()) HostProducts::normalise(hidden, w_.hidden_norm, w_.spec.norm_eps);
  joined_.resize(2 * rows * d);
  for (size_t t = 0; t < rows; ++t) {
    std::copy_n(&embedded[t * d], d, &joined_[2 * t * d]);
    std::copy_n(&hidden[t * d], d, &joined_[(2 * t + 1) * d]);
  }
  if (w_.kind == EagleKind::eagle3) {
    residual_ =
        w_.residual_is_normed ? hidden : std::vector<float>(features.begin(), features.end());
    return;
  }
  products_.multiply(joined_, w_.fuse, w_.fuse_bias.empty() ? nullptr : w_.fuse_bias.data(),
                     residual_);
  joined_ = residual_;
}

void EagleLayer::begin(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                       std::span<const float> features) {
  join(tokens, features);
  products_.multiply(joined_, w_.qkv, w_.qkv_bias.empty() ? nullptr : w_.qkv_bias.data(), qkv_);
  for (size_t t = 0; t < tokens.size(); ++t)
    rotate(&qkv_[t * static_cast<size_t>(query_width_ + 2 * kv_width_)], positions[t]);
}

// The heads of a row's queries and keys. The second half of a head stands opposite the first.
void EagleLayer::rotate(float* row, int32_t position) {
  const size_t half = frequencies_.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = position * frequencies_[i];
    cos_[i] = static_cast<float>(std::cos(angle));
    sin_[i] = static_cast<float>(std::sin(angle));
  }
  for (int32_t e = 0; e < query_width_ + kv_width_; e += head_dim_)
    for (size_t i = 0; i < half; ++i) {
      float &a = row[static_cast<size_t>(e) + i], &b = row[static_cast<size_t>(e) + i + half];
      const float c = cos_[i], s = sin_[i], first = a;
      a = first * c - b * s;
      b = b * c + first * s;
    }
}

std::span<const float> EagleLayer::kv_row(size_t row, int which) const {
  const size_t stride = static_cast<size_t>(query_width_ + 2 * kv_width_);
  const size_t begin = row * stride + static_cast<size_t>(query_width_ + which * kv_width_);
  return std::span(qkv_).subspan(begin, static_cast<size_t>(kv_width_));
}

std::span<const float> EagleLayer::finish(std::span<const std::vector<KvRun>> runs) {
  const size_t heads = static_cast<size_t>(w_.spec.heads);
  attended_.assign(runs.size() * static_cast<size_t>(query_width_), 0);
  pool_.run([&](Part part) {
    for (size_t i = part.index; i < runs.size() * heads; i += part.count)
      attend(i / heads, static_cast<int32_t>(i % heads), runs[i / heads], scores_[part.index]);
  });
  products_.multiply(attended_, w_.o, nullptr, out_);
  add_to(residual_, out_);
  std::vector<float> normed = residual_;
  HostProducts::normalise(normed, w_.ffn_norm, w_.spec.norm_eps);
  products_.multiply(normed, w_.gate_up, nullptr, gate_up_);
  const size_t ffn = static_cast<size_t>(w_.spec.layer(0).ffn.width);
  gated_.resize(runs.size() * ffn);
  for (size_t t = 0; t < runs.size(); ++t)
    for (size_t i = 0; i < ffn; ++i) {
      const float gate = gate_up_[2 * t * ffn + i], up = gate_up_[(2 * t + 1) * ffn + i];
      gated_[t * ffn + i] = gate / (1 + std::exp(-gate)) * up;
    }
  products_.multiply(gated_, w_.down, nullptr, out_);
  add_to(out_, residual_);
  return out_;
}

// One head of one row.
void EagleLayer::attend(size_t row, int32_t head, std::span<const KvRun> runs,
                        std::vector<float>& scores) {
  const int32_t group = w_.spec.heads / w_.spec.kv_heads;
  const int64_t at = int64_t{head / group} * head_dim_;
  const float* q =
      &qkv_[row * static_cast<size_t>(query_width_ + 2 * kv_width_) + head * head_dim_];
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim_));
  scores.clear();
  float max = kExcluded;
  for (const KvRun& run : runs)
    for (int32_t i = 0; i < run.count; ++i) {
      scores.push_back(dot(q, run.keys + int64_t{i} * kv_width_ + at, head_dim_) * scale);
      max = std::max(max, scores.back());
    }
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - max);
  float* out = &attended_[row * static_cast<size_t>(query_width_) + head * head_dim_];
  const float* score = scores.data();
  for (const KvRun& run : runs)
    for (int32_t i = 0; i < run.count; ++i) {
      const float share = *score++ / sum;
      const float* value = run.values + int64_t{i} * kv_width_ + at;
      for (int32_t e = 0; e < head_dim_; ++e) out[e] += share * value[e];
    }
}

std::vector<float> EagleLayer::logits(std::span<const float> hidden) {
  std::vector<float> x(hidden.begin(), hidden.end()), y;
  if (!w_.final_norm.empty()) HostProducts::normalise(x, w_.final_norm, w_.spec.norm_eps);
  products_.multiply(x, w_.head, nullptr, y);
  if (w_.logit_scale != 1)
    for (float& logit : y) logit *= w_.logit_scale;
  if (w_.target_ids.empty()) return y;
  const size_t rows = hidden.size() / static_cast<size_t>(width_), known = w_.target_ids.size();
  const size_t vocab = static_cast<size_t>(w_.target_vocab);
  std::vector<float> all(rows * vocab, kExcluded);
  for (size_t t = 0; t < rows; ++t)
    for (size_t i = 0; i < known; ++i)
      all[t * vocab + static_cast<size_t>(w_.target_ids[i])] = y[t * known + i];
  return all;
}

}  // namespace invar
