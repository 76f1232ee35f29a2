// Recurrences by chunk (numerics 4.4): a run of a sequence's rows in one chunk at a time, head by
// head. The products with the state, the keys and the values read cells as packed weights.
#include "kernels/cpu/recurrent.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace invar::cpu {

namespace {

constexpr int kStretches = kChunkSlots / kStretchSlots;

// Rows [begin, end) of one sequence at neighbouring positions of one chunk and one table.
struct RowRun {
  int64_t begin, end;
  int slot;      // of the first
  int32_t cell;  // of the chunk
  int rows() const { return static_cast<int>(end - begin); }
  int seen() const { return slot + rows(); }  // slots
};

RowRun run_at(const RecurrenceParams& p, int64_t begin, int64_t end) {
  const RowPlaces& at = p.places;
  int64_t last = begin + 1;
  while (last < end && at.table_of[last] == at.table_of[begin] &&
         at.positions[last] == at.positions[last - 1] + 1 && at.slot(last) != 0)
    ++last;
  return {begin, last, at.slot(begin), at.cell_of(begin, at.positions[begin])};
}

// The arrays that one share computes with. Rows of a run are its queries and then, but for Mamba 2,
// its keys.
struct Room {
  alignas(64) char x[2 * kChunkSlots * kMostStateSize * 4];    // what meets the state; or decayed
  alignas(64) char own[2 * kChunkSlots * kMostStateSize * 4];  // the rows themselves
  alignas(64) float of_state[2 * kChunkSlots * kMostStateSize];
  alignas(64) float dots[kMostStateSize * kMostStateSize];  // of values
  alignas(64) float scores[2 * kChunkSlots * kChunkSlots];
  alignas(64) float weights[2 * kChunkSlots * kChunkSlots];
  alignas(64) char operands[2 * kChunkSlots * kChunkSlots * 4];
  alignas(64) float values[kStretchSlots * kMostStateSize];  // of a stretch
  // With channels: decays by channel and slot, and the keys of an earlier stretch as they are met.
  alignas(64) float decays[kMostStateSize * kChunkSlots];
  alignas(64) char folded[kStretchSlots * kMostStateSize * 4];
  alignas(64) float keys[kStretchSlots * kMostStateSize];  // of a stretch, in f32
};

class HeadOfRun {
 public:
  HeadOfRun(const RecurrentFunctions& rows, const RecurrenceParams& p, const RowRun& run,
            Room& room)
      : f_(rows), p_(p), layer_(p.layer), run_(run), room_(room), whole_{.share = {}} {}

  // The rows of a key head and what does not depend on the value head.
  void take_key_head(int key_head) {
    key_head_ = key_head;
    const int64_t bytes = layer_.padded_key() * element();
    for (int64_t i = 0; i < all_rows(); ++i) {
      const bool is_key = i >= run_.rows();
      const char* from = static_cast<const char*>(is_key ? p_.k : p_.q);
      const int64_t t = run_.begin + i - (is_key ? run_.rows() : 0);
      std::memcpy(room_.own + i * bytes, from + (t * layer_.key_heads + key_head) * bytes, bytes);
    }
    if (!has_channels())
      multiply(room_.own, layer_.padded_key(), all_rows(), keys(), run_.seen(), layer_.key_size,
               room_.scores, kChunkSlots);
  }

  void compute(int head) {
    head_ = head;
    add_decays();
    meet_state();
    if (has_channels()) weigh_channels();
    for (int64_t i = 0; i < all_rows(); ++i) weigh(i);
    for (int j = run_.slot / kStretchSlots; j * kStretchSlots < run_.seen(); ++j)
      leave_values(j * kStretchSlots);
    write_outputs();
    const int64_t last = run_.end - 1;
    if (run_.seen() == kChunkSlots && p_.next_state[last] >= 0) write_state(p_.next_state[last]);
  }

 private:
  bool has_channels() const { return layer_.kind == Recurrence::channel_delta; }
  bool has_keys() const { return layer_.kind != Recurrence::state_space; }
  bool is_bf16() const { return !layer_.is_f32(); }
  int64_t element() const { return size_of(layer_.type); }
  // Rows in front: queries, then keys.
  int64_t all_rows() const { return has_keys() ? 2 * run_.rows() : run_.rows(); }
  int slot_of(int64_t i) const { return run_.slot + static_cast<int>(i % run_.rows()); }

  char* keys() const {
    return layer_.keys.at<char>(run_.cell) + key_head_ * layer_.key_elements() * element();
  }
  char* values(int32_t cell) const {
    return layer_.values.at<char>(cell) + head_ * layer_.value_elements() * element();
  }
  float* sums(int32_t cell, int slot) const {
    return layer_.sums.at<float>(cell) + head_ * layer_.sum_elements() + slot * layer_.channels();
  }
  const float* sums(int slot) const { return sums(run_.cell, slot); }
  template <typename T>
  T* state(const Cells& cells, int32_t cell) const {
    return cells.at<T>(cell) + head_ * layer_.state_elements();
  }
  float* weights(int64_t i) const { return room_.weights + i * kChunkSlots; }
  char* operand(int64_t i) const { return room_.operands + i * kChunkSlots * element(); }
  const float* v(int64_t t) const { return p_.v + t * p_.v_stride + head_ * layer_.value_size; }

  // y[i] = x[i] times packed outputs.
  void multiply(const void* x, int64_t x_stride, int64_t rows, const void* w, int64_t outputs,
                int64_t inner, float* y, int64_t y_stride) const {
    p_.matmul({.x = {const_cast<void*>(x), layer_.type, x_stride},
               .w = {.data = w, .type = layer_.type, .n = outputs, .k = inner},
               .rows = rows,
               .split_k = 1,
               .bias = nullptr,
               .accumulate = false,
               .y = y,
               .y_stride = y_stride},
              whole_);
  }

  void add_decays() {
    const int64_t channels = layer_.channels();
    for (int64_t t = run_.begin; t < run_.end; ++t) {
      const int slot = p_.places.slot(t);
      const float* g = p_.decays + (t * layer_.heads + head_) * channels;
      const float* before = slot ? sums(slot - 1) : nullptr;
      for (int w = p_.places.write_begin[t]; w < p_.places.write_begin[t + 1]; ++w) {
        float* to = sums(p_.places.write_cell[w], slot);
        for (int64_t d = 0; d < channels; ++d) to[d] = (before ? before[d] : 0.0f) + g[d];
      }
    }
  }

  bool has_state() const { return p_.state_of[run_.begin] >= 0; }
  const float* of_state(int64_t i) const {
    return has_state() ? room_.of_state + i * layer_.value_size : nullptr;
  }
  float state_factor(int64_t i) const {
    float y = 1.0f;
    if (!has_channels()) f_.decays(sums(slot_of(i)), nullptr, 1, &y);
    return y;
  }
  void meet_state() const {
    if (!has_state()) return;
    const char* x = room_.own;
    if (has_channels()) {
      for (int64_t i = 0; i < all_rows(); ++i) decay_row(i, nullptr);
      x = room_.x;
    }
    const int32_t cell = p_.state_of[run_.begin];
    const void* operand = is_bf16() ? static_cast<void*>(state<bf16_t>(layer_.operands, cell))
                                    : state<float>(layer_.states, cell);
    multiply(x, layer_.padded_key(), all_rows(), operand, layer_.value_size, layer_.key_size,
             room_.of_state, layer_.value_size);
  }

  // Row i times exp(its sums less `from`), into room_.x.
  void decay_row(int64_t i, const float* from) const {
    const int64_t size = layer_.padded_key() * element();
    f_.decays(sums(slot_of(i)), from, layer_.key_size, room_.decays);
    std::memset(room_.x + i * size, 0, size);
    f_.decayed(room_.own + i * size, room_.decays, layer_.key_size, is_bf16(), room_.x + i * size);
  }

  // Weights of stretches by channel, where the scores of one decay a head would stand.
  void weigh_channels() const {
    for (int stretch = 0; stretch < run_.seen(); stretch += kStretchSlots) {
      const int next = stretch + kStretchSlots;
      if (next < run_.seen()) weigh_earlier(stretch);
      if (next > run_.slot) weigh_within(stretch);
    }
  }
  // Rows behind a stretch.
  void weigh_earlier(int stretch) const {
    const float* last = sums(stretch + kStretchSlots - 1);
    const int64_t size = layer_.key_size;
    for (int s = 0; s < kStretchSlots; ++s) {
      f_.decays(last, sums(stretch + s), size, room_.keys);
      for (int64_t d = 0; d < size; ++d) room_.decays[d * kStretchSlots + s] = room_.keys[d];
    }
    const int64_t panel = kStretchSlots * layer_.padded_key() * element();
    std::memset(room_.folded, 0, panel);
    f_.decayed_keys(keys() + stretch / kStretchSlots * panel, room_.decays, kStretchSlots, size,
                    is_bf16(), true, room_.folded, 0);
    const int first = std::max(0, stretch + kStretchSlots - run_.slot);
    for (int64_t part = 0; part < all_rows(); part += run_.rows()) {
      for (int64_t i = part + first; i < part + run_.rows(); ++i) decay_row(i, last);
      const int64_t at = part + first;
      multiply(room_.x + at * layer_.padded_key() * element(), layer_.padded_key(),
               run_.rows() - first, room_.folded, kStretchSlots, size, weights(at) + stretch,
               kChunkSlots);
    }
  }
  // Rows of a stretch among themselves.
  void weigh_within(int stretch) const {
    const int64_t size = layer_.key_size;
    const int end = std::min(run_.seen(), stretch + kStretchSlots);
    for (int s = stretch; s < end; ++s)
      for (int64_t d = 0; d < size; ++d)
        room_.keys[(s - stretch) * size + d] =
            is_bf16() ? bf16_to_f32(reinterpret_cast<bf16_t*>(keys())[layer_.key_index(s, d)])
                      : reinterpret_cast<float*>(keys())[layer_.key_index(s, d)];
    const int first = std::max(run_.slot, stretch);
    alignas(64) float x[kMostStateSize];
    for (int64_t part = 0; part < all_rows(); part += run_.rows())
      for (int slot = first; slot < end; ++slot) {
        const int64_t i = part + slot - run_.slot;
        row_as_f32(i, x);
        for (int s = stretch; s <= slot; ++s) {
          f_.decays(sums(slot), sums(s), size, room_.decays);
          weights(i)[s] = f_.channel_dot(x, room_.decays, room_.keys + (s - stretch) * size, size);
        }
      }
  }
  void row_as_f32(int64_t i, float* x) const {
    const char* row = room_.own + i * layer_.padded_key() * element();
    for (int64_t d = 0; d < layer_.key_size; ++d)
      x[d] = is_bf16() ? bf16_to_f32(reinterpret_cast<const bf16_t*>(row)[d])
                       : reinterpret_cast<const float*>(row)[d];
  }

  // A query sees its own slot; a key's weights in its own stretch are not rounded.
  void weigh(int64_t i) const {
    const int slot = slot_of(i);
    const bool is_key = i >= run_.rows();
    f_.weigh({.scores = has_channels() ? nullptr : room_.scores + i * kChunkSlots,
              .sums = sums(0),
              .sum = *sums(slot),
              .count = is_key ? slot : slot + 1,
              .rounded = is_key ? slot / kStretchSlots * kStretchSlots : slot + 1,
              .is_bf16 = is_bf16(),
              .weights = weights(i),
              .operand = operand(i)});
  }

  // Leaves the values of the run's rows in the stretch that begins at slot `stretch`.
  void leave_values(int stretch) const {
    const int first = std::max(run_.slot, stretch) - run_.slot;
    const int end = std::min(run_.seen(), stretch + kStretchSlots) - run_.slot;
    const int64_t key = run_.rows(), stride = round_up(layer_.value_size, 16);
    if (has_keys() && stretch > 0)
      multiply(operand(key + first), kChunkSlots, end - first, values(run_.cell), layer_.value_size,
               kChunkSlots, room_.dots, layer_.value_size);
    for (int s = stretch; has_keys() && s < run_.slot + first; ++s)
      f_.take(values(run_.cell), layer_.value_size, s, is_bf16(),
              room_.values + (s - stretch) * stride);
    for (int i = first; i < end; ++i) {
      const int64_t t = run_.begin + i;
      const int count = has_keys() ? run_.slot + i - stretch : 0;
      const bool is_finite = f_.value(
          {.v = v(t),
           .of_state = has_keys() ? of_state(key + i) : nullptr,
           .of_others =
               has_keys() && stretch > 0 ? room_.dots + (i - first) * layer_.value_size : nullptr,
           .weights = has_keys() ? weights(key + i) + stretch : nullptr,
           .values = room_.values,
           .stride = stride,
           .size = layer_.value_size,
           .count = count,
           .decay = has_keys() ? state_factor(i) : 0.0f,
           .factor = p_.factors[t * layer_.heads + head_],
           .is_delta = has_keys(),
           .is_bf16 = is_bf16()});
      if (!is_finite) mark(p_.non_finite[t]);
      for (int w = p_.places.write_begin[t]; w < p_.places.write_begin[t + 1]; ++w)
        f_.leave(room_.values + count * stride, layer_.value_size, run_.slot + i, is_bf16(),
                 values(p_.places.write_cell[w]));
    }
  }

  void write_outputs() const {
    multiply(room_.operands, kChunkSlots, run_.rows(), values(run_.cell), layer_.value_size,
             kChunkSlots, room_.dots, layer_.value_size);
    for (int64_t i = 0; i < run_.rows(); ++i) {
      const int64_t t = run_.begin + i;
      f_.output(of_state(i), state_factor(i), room_.dots + i * layer_.value_size,
                p_.skips ? p_.skips + head_ : nullptr, v(t), layer_.value_size,
                p_.out + t * p_.out_stride + head_ * layer_.value_size);
    }
  }

  void write_state(int32_t cell) const {
    const int64_t size = layer_.key_size, panel = kStretchSlots * layer_.padded_key() * element();
    alignas(64) float last[kMostStateSize];
    const float* end = sums(kChunkSlots - 1);
    for (int s = 0; s < kChunkSlots; ++s) {  // decays of a slot, a line of each channel
      f_.decays(end, sums(s), layer_.channels(), last);
      for (int64_t d = 0; d < layer_.channels(); ++d) room_.decays[d * kChunkSlots + s] = last[d];
    }
    for (int j = 0; j < kStretches; ++j)
      f_.decayed_keys(keys() + j * panel, room_.decays + j * kStretchSlots,
                      has_channels() ? kChunkSlots : 0, size, is_bf16(), false,
                      room_.x + j * kStretchSlots * element(), kChunkSlots);
    multiply(room_.x, kChunkSlots, size, values(run_.cell), layer_.value_size, kChunkSlots,
             room_.dots, layer_.value_size);
    f_.decays(end, nullptr, layer_.channels(), last);
    if (!has_channels()) std::fill_n(last, size, last[0]);
    f_.step_state(
        {.state = has_state() ? state<float>(layer_.states, p_.state_of[run_.begin]) : nullptr,
         .dots = room_.dots,
         .dots_stride = layer_.value_size,
         .decays = last,
         .key_size = size,
         .value_size = layer_.value_size,
         .next = state<float>(layer_.states, cell),
         .operand = is_bf16() ? state<bf16_t>(layer_.operands, cell) : nullptr});
  }

  const RecurrentFunctions& f_;
  const RecurrenceParams& p_;
  const RecurrentLayer& layer_;
  const RowRun run_;
  Room& room_;
  const Execution whole_;
  int key_head_ = 0, head_ = 0;
};

}  // namespace

void recurrence(const RecurrentFunctions& rows, const RecurrenceParams& p, const Execution& on) {
  CHECK(p.layer.key_size <= kMostStateSize && p.layer.value_size <= kMostStateSize,
        "a state beyond what the kernels hold");
  CHECK(p.layer.layout == CacheLayout::panels, "the layout of a recurrent layer on a CPU");
  // Heads first: sequences are of all lengths.
  const int head_parts = static_cast<int>(std::min<int64_t>(on.share.count, p.layer.heads));
  const int parts = on.share.count / head_parts;
  if (on.share.index >= head_parts * parts) return;
  const auto heads = Part{on.share.index / parts, head_parts}.of(p.layer.heads);
  const auto sequences = Part{on.share.index % parts, parts}.of(p.sequences);
  const int per_key = p.layer.heads / p.layer.key_heads;
  Room room;
  for (int64_t i = sequences.begin; i < sequences.end; ++i)
    for (int64_t t = p.sequence_begin[i]; t < p.sequence_begin[i + 1];) {
      const RowRun run = run_at(p, t, p.sequence_begin[i + 1]);
      HeadOfRun head(rows, p, run, room);
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        if (h == heads.begin || h % per_key == 0) head.take_key_head(static_cast<int>(h / per_key));
        head.compute(static_cast<int>(h));
      }
      t = run.end;
    }
}

}  // namespace invar::cpu
