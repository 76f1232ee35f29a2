// Recurrences by chunk: numerics 4.4, one head of one row at a time.
#include "kernels/recurrent.h"

#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

template <typename T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return f32_to_bf16(x);
}
template <typename T>
T kept(float x) {
  if constexpr (std::is_same_v<T, float>)
    return f32_to_cached_f32(x);
  else
    return f32_to_cached_bf16(x);
}
float value_of(bf16_t x) {
  return bf16_to_f32(x);
}
float value_of(float x) {
  return x;
}

template <Order order>
float dot(const bf16_t* x, const bf16_t* w, int64_t k) {
  return orders::dot(order, x, w, k);
}
template <Order order>
float dot(const float* x, const float* w, int64_t k) {
  return orders::dot(x, w, k);  // there is no f32 in other orders
}

template <Order order, typename T>
class HeadOfRow {
 public:
  HeadOfRow(const RecurrenceParams& p, int64_t t, int head)
      : p_(p),
        layer_(p.layer),
        t_(t),
        head_(head),
        slot_(p.places.slot(t)),
        cell_(p.places.cell_of(t, p.places.positions[t])) {}

  void compute() {
    add_decay();
    const int key_head = head_ / (layer_.heads / layer_.key_heads);
    const int64_t at = (t_ * layer_.key_heads + key_head) * layer_.padded_key();
    const T *q = static_cast<const T*>(p_.q) + at, *k = static_cast<const T*>(p_.k) + at;
    float weights[kChunkSlots] = {};
    load_keys(key_head);
    if (layer_.kind != Recurrence::state_space) weigh(k, slot_, weights);
    leave_values(k, weights);
    weigh(q, slot_ + 1, weights);
    write_output(q, weights);
    const bool ends_chunk = slot_ + 1 == kChunkSlots;
    if (ends_chunk && p_.next_state[t_] >= 0) write_state(p_.next_state[t_]);
  }

 private:
  bool has_channels() const { return layer_.kind == Recurrence::channel_delta; }
  float* sums(int32_t cell, int slot) const {
    return layer_.sums.at<float>(cell) + head_ * layer_.sum_elements() + slot * layer_.channels();
  }
  // G of a slot of the row's chunk; `d` is a channel of the key.
  float sum(int slot, int64_t d) const { return sums(cell_, slot)[has_channels() ? d : 0]; }
  float decay(int slot, int64_t d) const { return math::exp(sum(slot_, d) - sum(slot, d)); }

  void add_decay() {
    for (int64_t d = 0; d < layer_.channels(); ++d) {
      const float before = slot_ ? sum(slot_ - 1, d) : 0.0f;
      const float g = p_.decays[(t_ * layer_.heads + head_) * layer_.channels() + d];
      for (int w = p_.places.write_begin[t_]; w < p_.places.write_begin[t_ + 1]; ++w)
        sums(p_.places.write_cell[w], slot_)[d] = before + g;
    }
  }

  void load_keys(int key_head) {
    const T* keys = layer_.keys.at<T>(cell_) + key_head * layer_.key_elements();
    for (int s = 0; s <= slot_; ++s)
      for (int64_t d = 0; d < layer_.key_size; ++d) keys_[s][d] = keys[layer_.key_index(s, d)];
  }

  // The weights of x with the keys of the first `count` slots.
  void weigh(const T* x, int count, float* weights) const {
    for (int s = 0; s < count; ++s)
      weights[s] = has_channels() ? channel_weight(x, s)
                                  : decay(s, 0) * dot<order>(x, keys_[s], layer_.key_size);
  }

  float channel_weight(const T* x, int s) const {
    const int last = s / kStretchSlots * kStretchSlots + kStretchSlots - 1;  // of its stretch
    if (last >= slot_ / kStretchSlots * kStretchSlots) return weight_in_stretch(x, s);
    T a[kMostStateSize], b[kMostStateSize];
    for (int64_t d = 0; d < layer_.key_size; ++d) {
      a[d] = rounded<T>(value_of(x[d]) * decay(last, d));
      b[d] = rounded<T>(value_of(keys_[s][d]) * math::exp(sum(last, d) - sum(s, d)));
    }
    return dot<order>(a, b, layer_.key_size);
  }

  float weight_in_stretch(const T* x, int s) const {
    float lane[64] = {};
    for (int64_t d = 0; d < layer_.key_size; ++d)
      lane[d % 64] =
          __builtin_fmaf(value_of(x[d]) * decay(s, d), value_of(keys_[s][d]), lane[d % 64]);
    return orders::halve64(lane);
  }

  // S' x, one value of it, before what multiplies it.
  float of_state(const T* x, int64_t e) const {
    if (p_.state_of[t_] < 0) return 0.0f;
    const float* state = layer_.states.at<float>(p_.state_of[t_]) + head_ * layer_.state_elements();
    T a[kMostStateSize], b[kMostStateSize];
    for (int64_t d = 0; d < layer_.key_size; ++d) {
      a[d] = has_channels() ? rounded<T>(value_of(x[d]) * math::exp(sum(slot_, d))) : x[d];
      b[d] = rounded<T>(state[layer_.state_index(d, e)]);
    }
    return dot<order>(a, b, layer_.key_size);
  }
  // The factor of the state.
  float state_factor() const { return has_channels() ? 1.0f : math::exp(sum(slot_, 0)); }

  T* values(int32_t cell) const {
    return layer_.values.at<T>(cell) + head_ * layer_.value_elements();
  }
  T u(int slot, int64_t e) const { return values(cell_)[layer_.value_index(slot, e)]; }
  // The dot of rounded weights, zeros from slot `count` on, and u.
  float of_values(const float* weights, int count, int64_t e) const {
    T a[kChunkSlots] = {}, b[kChunkSlots] = {};
    for (int s = 0; s < count; ++s) a[s] = rounded<T>(weights[s]), b[s] = u(s, e);
    return dot<order>(a, b, kChunkSlots);
  }
  float v(int64_t e) const { return p_.v[t_ * p_.v_stride + head_ * layer_.value_size + e]; }

  float new_value(const T* k, const float* weights, int64_t e) const {
    if (layer_.kind == Recurrence::state_space) return v(e);
    const int stretch = slot_ / kStretchSlots * kStretchSlots;
    float r = __builtin_fmaf(-state_factor(), of_state(k, e), v(e));
    r = r - of_values(weights, stretch, e);
    for (int s = stretch; s < slot_; ++s) r = __builtin_fmaf(-weights[s], value_of(u(s, e)), r);
    return r;
  }

  void leave_values(const T* k, const float* weights) {
    for (int64_t e = 0; e < layer_.value_size; ++e) {
      const float u = p_.factors[t_ * layer_.heads + head_] * new_value(k, weights, e);
      if (!std::isfinite(u)) mark(p_.non_finite[t_]);
      for (int w = p_.places.write_begin[t_]; w < p_.places.write_begin[t_ + 1]; ++w)
        values(p_.places.write_cell[w])[layer_.value_index(slot_, e)] = kept<T>(u);
    }
  }

  void write_output(const T* q, const float* weights) const {
    float* out = p_.out + t_ * p_.out_stride + head_ * layer_.value_size;
    for (int64_t e = 0; e < layer_.value_size; ++e) {
      const float y =
          __builtin_fmaf(state_factor(), of_state(q, e), of_values(weights, slot_ + 1, e));
      out[e] = p_.skips ? __builtin_fmaf(p_.skips[head_], v(e), y) : y;
    }
  }

  void write_state(int32_t cell) const {
    const int64_t size = layer_.state_elements();
    float* next = layer_.states.at<float>(cell) + head_ * size;
    const float* state =
        p_.state_of[t_] < 0 ? nullptr : layer_.states.at<float>(p_.state_of[t_]) + head_ * size;
    T* operand = layer_.is_f32() ? nullptr : layer_.operands.at<T>(cell) + head_ * size;
    for (int64_t d = 0; d < layer_.padded_key(); ++d) {
      T x[kChunkSlots];
      for (int s = 0; s < kChunkSlots && d < layer_.key_size; ++s)
        x[s] = rounded<T>(value_of(keys_[s][d]) * decay(s, d));
      for (int64_t e = 0; e < round_up(layer_.value_size, kPanelWidth); ++e) {
        const int64_t at = layer_.state_index(d, e);
        const bool is_pad = d >= layer_.key_size || e >= layer_.value_size;
        const float y = is_pad ? 0.0f : next_of(d, e, state ? state[at] : 0.0f, x);
        next[at] = y;
        if (operand) operand[layer_.operand_index(d, e)] = rounded<T>(y);
      }
    }
  }
  float next_of(int64_t d, int64_t e, float state, const T* x) const {
    T of[kChunkSlots];
    for (int s = 0; s < kChunkSlots; ++s) of[s] = u(s, e);
    return __builtin_fmaf(math::exp(sum(slot_, d)), state, dot<order>(x, of, kChunkSlots));
  }

  const RecurrenceParams& p_;
  const RecurrentLayer& layer_;
  const int64_t t_;
  const int head_, slot_;
  const int32_t cell_;
  T keys_[kChunkSlots][kMostStateSize] = {};
};

}  // namespace

template <Order order>
void recurrence(const RecurrenceParams& p, const Execution& on) {
  CHECK(p.layer.key_size <= kMostStateSize && p.layer.value_size <= kMostStateSize,
        "a state beyond what the kernels hold");
  const auto [begin, end] = on.share.of(p.layer.heads);
  for (int64_t t = p.sequence_begin[0]; t < p.sequence_begin[p.sequences]; ++t)
    for (int64_t h = begin; h < end; ++h)
      if (p.layer.is_f32())
        HeadOfRow<order, float>(p, t, static_cast<int>(h)).compute();
      else
        HeadOfRow<order, bf16_t>(p, t, static_cast<int>(h)).compute();
}

template void recurrence<Order::portable>(const RecurrenceParams&, const Execution&);
template void recurrence<Order::hopper>(const RecurrenceParams&, const Execution&);
template void recurrence<Order::pair>(const RecurrenceParams&, const Execution&);

}  // namespace invar::reference
