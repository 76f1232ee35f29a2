#include "sampling/row.h"

#include <immintrin.h>

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {

constexpr int kLanes = 8;

float largest_lane(__m256 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

// Applies `f` to the eight lanes of every vector of a block in `in`, stores them in `out` and
// returns the largest; ors the lanes that are NaN into `nan`.
template <typename F>
float map_block(const float* in, float* out, __m256& nan, F f) {
  __m256 max = _mm256_set1_ps(kExcluded);
  for (int i = 0; i < LogitRow::kBlock; i += kLanes) {
    const __m256 x = f(_mm256_loadu_ps(in + i));
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    max = _mm256_max_ps(max, x);
    _mm256_storeu_ps(out + i, x);
  }
  return largest_lane(max);
}

// The same for a whole row. Returns whether no lane is NaN.
template <typename F>
bool map_row(std::span<const float> in, std::vector<float>& out, std::vector<float>& maxima, F f) {
  __m256 nan = _mm256_setzero_ps();
  const size_t whole = in.size() / LogitRow::kBlock;
  for (size_t b = 0; b < whole; ++b)
    maxima[b] = map_block(&in[b * LogitRow::kBlock], &out[b * LogitRow::kBlock], nan, f);
  if (whole < maxima.size()) {
    float tail[LogitRow::kBlock];
    std::fill(std::begin(tail), std::end(tail), kExcluded);
    std::copy(in.begin() + whole * LogitRow::kBlock, in.end(), tail);
    maxima[whole] = map_block(tail, &out[whole * LogitRow::kBlock], nan, f);
  }
  return _mm256_testz_ps(nan, nan);
}

}  // namespace

void LogitRow::resize(size_t size) {
  size_ = size;
  const size_t blocks = (size + kBlock - 1) / kBlock;
  values_.resize(blocks * kBlock);
  maxima_.resize(blocks);
}

bool LogitRow::assign(std::span<const float> logits) {
  resize(logits.size());
  return map_row(logits, values_, maxima_, [](__m256 x) { return x; });
}

bool LogitRow::assign_quotients(std::span<const float> logits, float divisor) {
  resize(logits.size());
  const __m256 d = _mm256_set1_ps(divisor);
  return map_row(logits, values_, maxima_, [d](__m256 x) { return _mm256_div_ps(x, d); });
}

void LogitRow::divide(float divisor) {
  const __m256 d = _mm256_set1_ps(divisor);
  map_row(values_, values_, maxima_, [d](__m256 x) { return _mm256_div_ps(x, d); });
}

void LogitRow::update_maxima() {
  map_row(values_, values_, maxima_, [](__m256 x) { return x; });
}

Ranked LogitRow::largest() const {
  const auto max = std::max_element(maxima_.begin(), maxima_.end());
  const int32_t begin = static_cast<int32_t>(max - maxima_.begin()) * kBlock;
  const auto at = std::find(values_.begin() + begin, values_.begin() + begin + kBlock, *max);
  return {*max, static_cast<int32_t>(at - values_.begin())};
}

void LogitRow::collect_candidates(int32_t k) {
  // The k-th largest block maximum is a bound: k tokens are at least as large.
  float bound = kExcluded;
  if (k <= num_blocks()) {
    order_.assign(maxima_.begin(), maxima_.end());
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), std::greater<>());
    bound = order_[k - 1];
  }
  candidates_.clear();
  for (int32_t b = 0; b < num_blocks(); ++b) {
    if (maxima_[b] < bound || maxima_[b] == kExcluded) continue;
    for (int32_t i = b * kBlock; i < (b + 1) * kBlock; ++i)
      if (values_[i] >= bound && values_[i] != kExcluded) candidates_.push_back({values_[i], i});
  }
}

Ranked LogitRow::kth(int32_t k) {
  CHECK(k >= 1, "tokens are counted from 1");
  collect_candidates(k);
  if (std::ssize(candidates_) < k) return {kExcluded, 0};
  std::nth_element(candidates_.begin(), candidates_.begin() + (k - 1), candidates_.end(),
                   [](const Ranked& a, const Ranked& b) { return a.before(b); });
  return candidates_[k - 1];
}

std::span<const Ranked> LogitRow::first(int32_t k) {
  if (k <= 0) return {};
  collect_candidates(k);
  const size_t count = std::min<size_t>(k, candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(),
                    [](const Ranked& a, const Ranked& b) { return a.before(b); });
  return {candidates_.data(), count};
}

void LogitRow::cut_after(Ranked last) {
  const __m256 value = _mm256_set1_ps(last.value), excluded = _mm256_set1_ps(kExcluded);
  const __m256i token = _mm256_set1_epi32(last.token);
  __m256i id = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (size_t i = 0; i < values_.size(); i += kLanes) {
    float* x = &values_[i];
    const __m256 old = _mm256_loadu_ps(x);
    const __m256 is_equal_but_later = _mm256_and_ps(
        _mm256_cmp_ps(old, value, _CMP_EQ_OQ), _mm256_castsi256_ps(_mm256_cmpgt_epi32(id, token)));
    const __m256 is_after = _mm256_or_ps(_mm256_cmp_ps(old, value, _CMP_LT_OQ), is_equal_but_later);
    _mm256_storeu_ps(x, _mm256_blendv_ps(old, excluded, is_after));
    id = _mm256_add_epi32(id, _mm256_set1_epi32(kLanes));
  }
  update_maxima();
}

}  // namespace invar
