// The backward of attention, numerics 9: one key/value head of one sequence at a time.
#include <algorithm>
#include <vector>

#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

// Rows [begin, end) of a batch: one sequence.
struct Sequence {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// p and ds of one query head: [query][slot], bf16, zero where a slot is invalid.
struct Weights {
  std::vector<bf16_t> p, ds;
};

// Column e of rows of bf16, as `count` consecutive elements.
std::vector<bf16_t> column(const bf16_t* rows, int64_t stride, int64_t count) {
  std::vector<bf16_t> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = rows[i * stride];
  return out;
}

template <Order order>
class HeadBackward {
 public:
  HeadBackward(const AttentionBackwardParams& p, Sequence sequence, int group)
      : p_(p), f_(p.forward), sequence_(sequence), group_(group), e_(f_.kv.head_dim) {
    const int32_t* table = f_.tables[f_.table_of[sequence.begin]];
    const KvLayer& kv = f_.kv;
    for (int64_t j = 0; j < sequence.size(); ++j)
      for (int64_t e = 0; e < e_; ++e) {
        const int64_t block = table[j / kv.block_size], slot = j % kv.block_size;
        keys_.push_back(kv.keys[kv.key_index(block, group, slot, e)]);
        values_.push_back(kv.values[kv.value_index(block, group, slot, e)]);
      }
  }

  void run() {
    const int heads = f_.heads / f_.kv.kv_heads;
    const int64_t n = sequence_.size(), k = f_.heads + group_, v = k + f_.kv.kv_heads;
    for (int64_t j = 0; j < n; ++j)
      std::fill_n(out(j, k), e_, 0.0f), std::fill_n(out(j, v), e_, 0.0f);
    for (int h = group_ * heads; h < (group_ + 1) * heads; ++h) {
      const Weights w = weights(h);
      for (int64_t e = 0; e < e_; ++e) {
        const auto keys = column(keys_.data() + e, e_, n);
        const auto queries = column(query(0, h) + e, query(1, h) - query(0, h), n);
        const auto d_outs = column(d_out(0, h) + e, p_.d_out.stride, n);
        for (int64_t t = 0; t < n; ++t)
          out(t, h)[e] = orders::dot(order, &w.ds[t * n], keys.data(), n);
        // Over heads, and within a head over queries.
        for (int64_t j = 0; j < n; ++j) {
          extend(out(j, k)[e], column(&w.ds[j], n, n), queries);
          extend(out(j, v)[e], column(&w.p[j], n, n), d_outs);
        }
      }
    }
  }

 private:
  const bf16_t* query(int64_t t, int h) const {
    return f_.q + ((sequence_.begin + t) * f_.heads + h) * round_up(e_, 32);
  }
  const bf16_t* d_out(int64_t t, int h) const {
    return static_cast<const bf16_t*>(p_.d_out.data) + (sequence_.begin + t) * p_.d_out.stride +
           h * e_;
  }
  float* out(int64_t t, int64_t head) const {
    return p_.d_qkv + (sequence_.begin + t) * p_.d_qkv_stride + head * e_;
  }

  static void extend(float& acc, const std::vector<bf16_t>& x, const std::vector<bf16_t>& y) {
    acc = orders::extend_chain(order, x.data(), y.data(), std::ssize(x), acc) + 0.0f;
  }

  // D: sum64 over the head of d_out * out.
  float mean_gradient(int64_t t, int h) const {
    const bf16_t* o =
        static_cast<const bf16_t*>(f_.out.data) + (sequence_.begin + t) * f_.out.stride + h * e_;
    float lane[64] = {};
    for (int64_t e = 0; e < e_; ++e)
      lane[e % 64] = __builtin_fmaf(bf16_to_f32(d_out(t, h)[e]), bf16_to_f32(o[e]), lane[e % 64]);
    return orders::halve64(lane);
  }

  Weights weights(int h) const {
    const int64_t n = sequence_.size();
    const float c = score_scale(f_).factor;
    const float scale = gradient_scale(f_);
    Weights w{std::vector<bf16_t>(n * n), std::vector<bf16_t>(n * n)};
    for (int64_t t = 0; t < n; ++t) {
      const int64_t stat = (sequence_.begin + t) * f_.heads + h;
      const float one_by_sum = 1.0f / p_.sum[stat], d = mean_gradient(t, h);
      const int64_t first = f_.window > 0 ? std::max<int64_t>(0, t - f_.window + 1) : 0;
      for (int64_t j = first; j <= t; ++j) {
        const float score = orders::dot(order, query(t, h), &keys_[j * e_], e_);
        const float p = math::exp2(__builtin_fmaf(score, c, -p_.max[stat])) * one_by_sum;
        const float dp = orders::dot(order, d_out(t, h), &values_[j * e_], e_);
        w.p[t * n + j] = f32_to_bf16(p);
        w.ds[t * n + j] = f32_to_bf16((p * (dp - d)) * scale);
      }
    }
    return w;
  }

  const AttentionBackwardParams& p_;
  const AttentionParams& f_;
  const Sequence sequence_;
  const int group_;
  const int64_t e_;
  std::vector<bf16_t> keys_, values_;  // [slot][E]
};

}  // namespace

template <Order order>
void attention_backward(const AttentionBackwardParams& p, const Execution& on) {
  const AttentionParams& f = p.forward;
  int64_t unit = 0;
  for (Sequence s{0, 0}; s.begin < f.rows; s.begin = s.end) {
    while (s.end < f.rows && f.table_of[s.end] == f.table_of[s.begin]) ++s.end;
    for (int g = 0; g < f.kv.kv_heads; ++g)
      if (unit++ % on.share.count == on.share.index) HeadBackward<order>(p, s, g).run();
  }
}

template void attention_backward<Order::portable>(const AttentionBackwardParams&, const Execution&);
template void attention_backward<Order::hopper>(const AttentionBackwardParams&, const Execution&);

}  // namespace invar::reference
