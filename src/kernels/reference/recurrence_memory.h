// The memory that the backward of a recurrence works with.
#pragma once

#include <algorithm>

#include "kernels/recurrent.h"

namespace invar::reference {

constexpr int kSlots = kChunkSlots, kStretches = kSlots / kStretchSlots;

// One share's memory: hands out 64-byte aligned pieces, or only counts them.
struct RecurrenceMemory {
  RecurrenceMemory(std::byte* base, int64_t positions, int64_t key_size, int64_t value_size) {
    const int64_t chunks = (positions + kSlots - 1) / kSlots, r = round_up(key_size, kLeafPad),
                  v = round_up(value_size, kLeafPad), state = key_size * value_size;
    const auto take = [&]<typename T>(T*& piece, int64_t count) {
      if (base) piece = reinterpret_cast<T*>(base + bytes);
      bytes += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    };
    take(states, chunks * state);
    take(d_state, state);
    take(d_of_queries, state);
    take(d_of_keys, state);
    take(values, chunks * kSlots * v);
    take(rests, chunks * kSlots * value_size);
    for (bf16_t** rows : {&q, &k, &decayed_q, &decayed_k, &written_k}) take(*rows, kSlots * r);
    for (bf16_t** rows : {&d_out, &d_rest}) take(*rows, kSlots * v);
    for (float** square : {&decay, &of_query, &of_key, &d_of_query, &d_of_key})
      take(*square, kSlots * kSlots);
    for (bf16_t** square : {&rounded, &rounded_key, &turned}) take(*square, kSlots * kSlots);
    for (float** rows : {&d_value, &d_rest_f32, &of_state}) take(*rows, kSlots * value_size);
    for (float** rows : {&dq, &reader, &read, &written, &part, &sums, &growth, &until})
      take(*rows, kSlots * key_size);
    take(near, kSlots * kStretchSlots * key_size);
    take(behind, (kStretches - 1) * kSlots * key_size);
    take(to_end, kSlots * key_size);
    take(columns, std::max(r, v) * kSlots);
    take(packed, round_up(kMostStateSize, 16) * kMostStateSize);
  }

  int64_t bytes = 0;
  float* states = nullptr;                              // [chunk][R][V]: before each chunk
  float* d_state = nullptr;                             // [R][V]: of the state behind the chunk
  float *d_of_queries = nullptr, *d_of_keys = nullptr;  // [R][V]: what rows add to it
  bf16_t* values = nullptr;                             // [position][V padded]: u
  float* rests = nullptr;                               // [position][V]: r
  // One chunk's rows: [slot][R padded].
  bf16_t *q = nullptr, *k = nullptr, *decayed_q = nullptr, *decayed_k = nullptr,
         *written_k = nullptr;
  bf16_t *d_out = nullptr, *d_rest = nullptr;  // [slot][V padded]
  // [row][slot]: exp of differences of sums, weights, the gradients of weights.
  float *decay = nullptr, *of_query = nullptr, *of_key = nullptr, *d_of_query = nullptr,
        *d_of_key = nullptr;
  bf16_t *rounded = nullptr, *rounded_key = nullptr, *turned = nullptr;  // [64][64]
  float *d_value = nullptr, *d_rest_f32 = nullptr, *of_state = nullptr;  // [slot][V]
  // [slot][R]: dq; dk of a key that reads others, is read, is written to the state; a term.
  float *dq = nullptr, *reader = nullptr, *read = nullptr, *written = nullptr, *part = nullptr;
  float *sums = nullptr, *growth = nullptr, *until = nullptr;  // [slot][channels]: of decays
  // With channels, exp of differences of sums: of a row and a slot of its stretch [row][slot][R],
  // of a row and the last slot of an earlier stretch [stretch][row][R], of that and a slot of its
  // own.
  float *near = nullptr, *behind = nullptr, *to_end = nullptr;
  bf16_t* columns = nullptr;  // [R or V][64]
  bf16_t* packed = nullptr;
};

}  // namespace invar::reference
