// Attention by slot: numerics 4, one query head of one row at a time.
#include <algorithm>
#include <type_traits>

#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

// One split of 128 slots adds this to one query head.
struct SplitResult {
  float max = 0;        // m_s
  float sum = 0;        // l_s
  float out[576] = {};  // o_s
};

// Values of a cache of T.
template <typename T>
class Reader {
 public:
  Reader(const KvLayer& kv, const int32_t* table, int64_t group)
      : kv_(kv), table_(table), group_(group) {}
  T key(int64_t slot, int64_t e) const {
    return reinterpret_cast<const T*>(
        kv_.keys)[kv_.key_index(block(slot), group_, slot % kv_.block_size, e)];
  }
  T value(int64_t slot, int64_t e) const {
    return reinterpret_cast<const T*>(
        kv_.values)[kv_.value_index(block(slot), group_, slot % kv_.block_size, e)];
  }

 private:
  int64_t block(int64_t slot) const { return table_[slot / kv_.block_size]; }
  const KvLayer& kv_;
  const int32_t* table_;
  int64_t group_;
};

template <Order order>
float dot(const bf16_t* x, const bf16_t* w, int64_t k) {
  return orders::dot(order, x, w, k);
}
template <Order order>
float dot(const float* x, const float* w, int64_t k) {
  return orders::dot(x, w, k);  // there is no f32 in other orders
}

// Slots [first, last] of the split that begins at `base` are valid; there is at least one.
template <Order order, typename T>
SplitResult attend_split(const Reader<T>& read, const T* q, int head_dim, ScoreScale scale,
                         int64_t base, int64_t first, int64_t last) {
  SplitResult result;
  float d[kSplitSlots], p[kSplitSlots] = {};
  T column[576];
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t j = first; j <= last; ++j) {
    for (int e = 0; e < head_dim; ++e) column[e] = read.key(j, e);
    d[j - base] = dot<order>(q, column, head_dim);
    if (scale.inner > 0) d[j - base] = math::half_tanh(d[j - base] * scale.inner);
    max = std::max(max, d[j - base]);
  }
  const float c = scale.factor;
  result.max = max * c;
  for (int64_t j = first; j <= last; ++j)
    p[j - base] = math::exp2(__builtin_fmaf(d[j - base], c, -result.max));
  result.sum = orders::sum64(p);

  T weights[kSplitSlots];
  for (int j = 0; j < kSplitSlots; ++j)
    if constexpr (std::is_same_v<T, float>)
      weights[j] = p[j];
    else
      weights[j] = f32_to_bf16(p[j]);
  for (int e = 0; e < head_dim; ++e) {
    T values[kSplitSlots] = {};  // an invalid slot adds an exact zero, whatever it holds
    for (int64_t j = first; j <= last; ++j) values[j - base] = read.value(j, e);
    result.out[e] = dot<order>(weights, values, kSplitSlots);
  }
  return result;
}

// Splits in ascending order; the first one sets the state (numerics 4, step 4).
void merge(SplitResult& state, const SplitResult& split, int head_dim) {
  const float max = std::max(state.max, split.max);
  const float a = math::exp2(state.max - max), b = math::exp2(split.max - max);
  state.max = max;
  state.sum = __builtin_fmaf(state.sum, a, split.sum * b);
  for (int e = 0; e < head_dim; ++e)
    state.out[e] = __builtin_fmaf(state.out[e], a, split.out[e] * b);
}

void store(const Activation& out, int64_t at, float y) {
  if (out.type == DType::bf16)
    static_cast<bf16_t*>(out.data)[at] = f32_to_bf16(y);
  else
    static_cast<float*>(out.data)[at] = y;
}

// A head's sink: one more split, behind the others, whose sum is 1 and whose values are 0.
void merge_sink(SplitResult& state, float sink, int head_dim) {
  SplitResult split;
  split.max = sink * math::constants::kLog2eHigh;
  split.sum = 1.0f;
  merge(state, split, head_dim);
}

// One query head of row t.
template <Order order, typename T>
void attend_head(const PartialAttentionParams& partial, int64_t t, int h) {
  const AttentionParams& p = partial.of;
  const int head_dim = p.kv.head_dim;
  const ScoreScale scale = score_scale(p);
  const Reader<T> read(p.kv, p.tables[p.table_of[t]], h / (p.heads / p.kv.kv_heads));
  const T* q = reinterpret_cast<const T*>(p.q) + (t * p.heads + h) * round_up(head_dim, 32);
  const int64_t last = p.positions[t], first = first_slot(partial, t);
  SplitResult state;
  bool is_first = true;
  for (int64_t base = first / kSplitSlots * kSplitSlots; base <= last; base += kSplitSlots) {
    const SplitResult split =
        attend_split<order>(read, q, head_dim, scale, base, std::max(first, base),
                            std::min<int64_t>(last, base + kSplitSlots - 1));
    if (is_first)
      state = split;
    else
      merge(state, split, head_dim);
    is_first = false;
  }
  if (p.sinks) merge_sink(state, p.sinks[h], head_dim);
  if (partial.max) partial.max[t * p.heads + h] = state.max;
  if (partial.sum) partial.sum[t * p.heads + h] = state.sum;
  for (int e = 0; e < head_dim; ++e)
    store(p.out, t * p.out.stride + h * head_dim + e, state.out[e] / state.sum);
}

}  // namespace

template <Order order>
void attention(const AttentionParams& p, const Execution& on) {
  partial_attention<order>({p}, on);
}

template <Order order>
void partial_attention(const PartialAttentionParams& partial, const Execution& on) {
  const AttentionParams& p = partial.of;
  const int64_t width = int64_t{p.heads} * p.kv.head_dim;
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    for (int h = 0; h < p.heads; ++h)
      (p.kv.is_f32() ? attend_head<order, float> : attend_head<order, bf16_t>)(partial, t, h);
    for (int64_t i = width; i < round_up(width, kLeafPad); ++i)
      store(p.out, t * p.out.stride + i, 0.0f);
  }
}

template void partial_attention<Order::portable>(const PartialAttentionParams&, const Execution&);
template void partial_attention<Order::hopper>(const PartialAttentionParams&, const Execution&);
template void attention<Order::portable>(const AttentionParams&, const Execution&);
template void attention<Order::hopper>(const AttentionParams&, const Execution&);
template void partial_attention<Order::pair>(const PartialAttentionParams&, const Execution&);
template void attention<Order::pair>(const AttentionParams&, const Execution&);

}  // namespace invar::reference
