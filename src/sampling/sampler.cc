#include "sampling/sampler.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace invar {

namespace {

constexpr int kVector = 8;
constexpr int kBlock = LogitRow::kBlock;
static_assert(kBlock == kNoiseBlock);

// Top-p sorts tokens into buckets by their distance below the largest logit, 64 to a unit. From
// 28 on a weight is zero: exp(-28) < 2^-40.
constexpr float kBucketsPerUnit = 64.0f, kFarthest = 28.0f;
constexpr int kNumBuckets = static_cast<int>(kBucketsPerUnit * kFarthest) + 1;

// math::exp of eight numbers that are not positive.
inline __m256 exp_of_nonpositive(__m256 x) {
  const __m256 high = _mm256_set1_ps(math::constants::kLog2eHigh);
  const __m256 round = _mm256_set1_ps(math::constants::kRound);
  const __m256 t = _mm256_mul_ps(x, high);
  const __m256 n = _mm256_sub_ps(_mm256_add_ps(t, round), round);
  __m256 f = _mm256_fmsub_ps(x, high, n);
  f = _mm256_fmadd_ps(x, _mm256_set1_ps(math::constants::kLog2eLow), f);
  __m256 p = _mm256_set1_ps(math::constants::kExp2[0]);
  for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(math::constants::kExp2[i]));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i bits =
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvttps_epi32(n), 23));
  const __m256 is_zero = _mm256_cmp_ps(t, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
  return _mm256_andnot_ps(is_zero, _mm256_castsi256_ps(bits));
}

// Adds the top_p_weight of every token of a block to its bucket.
void add_weights(const float* x, float max, uint64_t* buckets) {
  alignas(32) int32_t bucket[kVector], high[kVector], low[kVector];
  for (int i = 0; i < kBlock; i += kVector) {
    const __m256 below = _mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(max));
    const __m256 scaled = _mm256_mul_ps(below, _mm256_set1_ps(-kBucketsPerUnit));
    const __m256 at = _mm256_min_ps(scaled, _mm256_set1_ps(kBucketsPerUnit * kFarthest));
    _mm256_store_si256(reinterpret_cast<__m256i*>(bucket), _mm256_cvttps_epi32(at));
    // The integer part of the weight in two halves of 20 bits, all steps exact.
    const __m256 weight = _mm256_mul_ps(exp_of_nonpositive(below), _mm256_set1_ps(0x1p40f));
    const __m256i upper = _mm256_cvttps_epi32(_mm256_mul_ps(weight, _mm256_set1_ps(0x1p-20f)));
    const __m256 rest =
        _mm256_fnmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_set1_ps(0x1p20f), weight);
    _mm256_store_si256(reinterpret_cast<__m256i*>(high), upper);
    _mm256_store_si256(reinterpret_cast<__m256i*>(low), _mm256_cvttps_epi32(rest));
    for (int j = 0; j < kVector; ++j)
      buckets[bucket[j]] += (static_cast<uint64_t>(high[j]) << 20) + low[j];
  }
}

// The tokens of one bucket that has a weight.
void collect_bucket(const LogitRow& row, float max, int bucket, std::vector<Ranked>& tokens) {
  tokens.clear();
  const __m256 begin = _mm256_set1_ps(static_cast<float>(bucket));
  const __m256 end = _mm256_set1_ps(static_cast<float>(bucket + 1));
  for (int32_t b = 0; b < row.num_blocks(); ++b) {
    if ((row.block_max(b) - max) * -kBucketsPerUnit >= static_cast<float>(bucket + 1)) continue;
    const float* x = row.block(b);
    for (int i = 0; i < kBlock; i += kVector) {
      const __m256 below = _mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(max));
      const __m256 scaled = _mm256_mul_ps(below, _mm256_set1_ps(-kBucketsPerUnit));
      int mask = _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(scaled, begin, _CMP_GE_OQ),
                                                  _mm256_cmp_ps(scaled, end, _CMP_LT_OQ)));
      for (; mask != 0; mask &= mask - 1) {
        const int j = i + __builtin_ctz(mask);
        tokens.push_back({x[j], b * kBlock + j});
      }
    }
  }
}

// The sample of a row: the best (logit + noise) so far.
struct Best {
  int32_t token = -1;
  double score = 0;

  void offer(int32_t other, float logit, uint32_t bits) {
    const double sum = static_cast<double>(logit) + gumbel_of(bits);
    if (token < 0 || sum > score || (sum == score && other < token)) {
      token = other;
      score = sum;
    }
  }
  // A score that is certainly below the best, with room for the rounding of the f32 bounds.
  float bar() const { return static_cast<float>(score - 1e-3 - 1e-6 * std::abs(score)); }
};

// One bit for each of eight tokens that may reach the bar. With w = 1 - u, -log(u) >= w, so the
// noise is at most -log(w); and the bits of w read as a number are at most (log2(w) + 127) * 2^23.
int may_reach(__m256 logits, __m256i random, __m256 bar) {
  const __m256i w31 = _mm256_srli_epi32(_mm256_xor_si256(random, _mm256_set1_epi32(-1)), 1);
  const __m256i log_bits = _mm256_castps_si256(_mm256_cvtepi32_ps(w31));
  constexpr float kLn2 = 0x1.62e43p-1f;
  const __m256 bound =
      _mm256_fmadd_ps(_mm256_cvtepi32_ps(log_bits), _mm256_set1_ps(-kLn2 * 0x1p-23f),
                      _mm256_add_ps(logits, _mm256_set1_ps((127.0f + 31.0f) * kLn2)));
  return _mm256_movemask_ps(_mm256_cmp_ps(bound, bar, _CMP_GE_OQ));
}

// Offers the tokens of one block that may win.
void draw_block(const LogitRow& row, int32_t block, const NoiseKey& key, Best& best) {
  alignas(32) uint32_t bits[kBlock];
  random_block(key, static_cast<uint32_t>(block), bits);
  const float* x = row.block(block);
  for (int i = 0; i < kBlock; i += kVector) {
    const __m256i random = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits + i));
    int mask = best.token < 0
                   ? 0xff
                   : may_reach(_mm256_loadu_ps(x + i), random, _mm256_set1_ps(best.bar()));
    for (; mask != 0; mask &= mask - 1) {
      const int j = i + __builtin_ctz(mask);
      if (x[j] != kExcluded) best.offer(block * kBlock + j, x[j], bits[j]);
    }
  }
}

}  // namespace

Sampled Sampler::sample(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  if (const char* error = process(in)) return {.error = error};
  if (p.is_greedy()) return {.token = row_.largest().token};
  return {.token = sample({.seed = p.seed,
                           .position = static_cast<uint32_t>(in.position),
                           .choice = static_cast<uint32_t>(in.choice)})};
}

const char* Sampler::scale(const SampleInput& in) {
  if (!prepare(in)) return sampling::kNotANumber;
  const float largest = row_.largest().value;
  if (largest == -kExcluded) return sampling::kNotANumber;
  return largest == kExcluded ? sampling::kNothingAllowed : nullptr;
}

const char* Sampler::process(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  if (const char* error = scale(in)) return error;
  if (p.is_greedy()) return nullptr;
  if (p.min_p > 0.0) apply_min_p(static_cast<float>(p.min_p));
  if (p.top_k > 0) {
    const Ranked last = row_.kth(p.top_k);
    if (last.value != kExcluded) row_.cut_after(last);
  }
  if (p.top_p < 1.0) apply_top_p(p.top_p);
  return nullptr;
}

// Everything up to the temperature. False when a logit is NaN.
bool Sampler::prepare(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  const bool has_edits = !in.allowed.empty() || in.generated < p.min_tokens || p.has_exclusions() ||
                         !p.logit_bias.empty() || p.has_penalties();
  const float temperature = static_cast<float>(p.temperature);
  if (!has_edits)
    return p.is_greedy() ? row_.assign(in.logits) : row_.assign_quotients(in.logits, temperature);
  if (!row_.assign(in.logits)) return false;
  edit(in);
  if (p.is_greedy())
    row_.update_maxima();
  else
    row_.divide(temperature);
  return true;
}

// Changes single values: what is forbidden, biases, penalties.
void Sampler::edit(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  const std::span<float> x = row_.values();
  CHECK(in.allowed.empty() || in.allowed.size() * 64 >= x.size(), "a mask of the whole vocabulary");
  for (size_t word = 0; in.looks_back() && word < in.allowed.size(); ++word) {
    if (in.allowed[word] == ~uint64_t{0}) continue;
    const size_t end = std::min(x.size(), word * 64 + 64);
    for (size_t i = word * 64; i < end; ++i)
      x[i] = in.allowed[word] >> i % 64 & 1 ? x[i] : kExcluded;
  }
  if (p.has_exclusions()) exclude(in);
  if (in.looks_back() && in.generated < p.min_tokens)
    for (const int32_t token : p.stop_token_ids) x[token] = kExcluded;
  for (const auto& [token, bias] : p.logit_bias) x[token] = x[token] + static_cast<float>(bias);
  if (!p.has_penalties() || !in.looks_back()) return;
  CHECK(in.history != nullptr, "penalties need the tokens so far");
  const float repetition = static_cast<float>(p.repetition_penalty);
  for (const auto& [token, generated] : in.history->entries())
    x[token] = sampling::count_penalised(sampling::repetition_penalised(x[token], repetition),
                                         generated, p);
}

// Tokens that are not among the allowed, and those that would complete a bad word.
void Sampler::exclude(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  const std::span<float> x = row_.values();
  if (!p.allowed_token_ids.empty()) {
    auto begin = x.begin();  // of the tokens up to the next that is allowed
    for (const int32_t token : p.allowed_token_ids) {
      std::fill(begin, x.begin() + token, kExcluded);
      begin = x.begin() + token + 1;
    }
    std::fill(begin, x.end(), kExcluded);
  }
  if (!in.looks_back()) return;
  for (const std::vector<int32_t>& word : p.bad_words)
    if (sampling::is_begun(word, in.answer)) x[word.back()] = kExcluded;
}

// Excludes tokens with exp(x - max) < least. The function is evaluated only near the edge.
void Sampler::apply_min_p(float least) {
  if (least == 0.0f) return;  // a subnormal
  const float max = row_.largest().value;
  const double edge = math::log(static_cast<double>(least));
  const float certainly_out = static_cast<float>(edge - 1e-3);
  const float certainly_in = least > 1e-30f ? static_cast<float>(edge + 1e-3) : 0.0f;
  const std::span<float> x = row_.padded_values();
  for (size_t i = 0; i < x.size(); i += kVector) {
    const __m256 old = _mm256_loadu_ps(&x[i]);
    const __m256 below = _mm256_sub_ps(old, _mm256_set1_ps(max));
    const __m256 out = _mm256_cmp_ps(below, _mm256_set1_ps(certainly_out), _CMP_LT_OQ);
    const __m256 in = _mm256_cmp_ps(below, _mm256_set1_ps(certainly_in), _CMP_GE_OQ);
    _mm256_storeu_ps(&x[i], _mm256_blendv_ps(old, _mm256_set1_ps(kExcluded), out));
    for (int open = ~_mm256_movemask_ps(_mm256_or_ps(in, out)) & 0xff; open; open &= open - 1) {
      float& value = x[i + __builtin_ctz(open)];
      if (!(math::exp(value - max) >= least)) value = kExcluded;
    }
  }
  row_.update_maxima();
}

void Sampler::apply_top_p(double top_p) {
  const float max = row_.largest().value;
  bucket_weights_.assign(kNumBuckets, 0);
  for (int32_t b = 0; b < row_.num_blocks(); ++b)
    if (row_.block_max(b) - max > -kFarthest)
      add_weights(row_.block(b), max, bucket_weights_.data());
  uint64_t total = 0;
  for (const uint64_t weight : bucket_weights_) total += weight;
  const uint64_t limit = static_cast<uint64_t>(top_p * static_cast<double>(total));
  if (limit > total) return;

  // Whole buckets are kept up to the one in which the sum reaches the limit.
  uint64_t before = 0;
  int edge = 0;
  while (before + bucket_weights_[edge] < limit) before += bucket_weights_[edge++];
  collect_bucket(row_, max, edge, edge_tokens_);
  std::sort(edge_tokens_.begin(), edge_tokens_.end(),
            [](const Ranked& a, const Ranked& b) { return a.before(b); });
  size_t kept = 0;
  do {
    before += sampling::top_p_weight(edge_tokens_[kept++].value - max);
  } while (kept < edge_tokens_.size() && before < limit);
  row_.cut_after(edge_tokens_[kept - 1]);
}

int32_t Sampler::sample(const NoiseKey& key) const {
  Best best;
  const int32_t first = row_.largest().token / kBlock;
  draw_block(row_, first, key, best);
  for (int32_t b = 0; b < row_.num_blocks(); ++b)
    if (b != first && row_.block_max(b) + static_cast<float>(kMaxGumbel) >= best.bar())
      draw_block(row_, b, key, best);
  return best.token;
}

}  // namespace invar
