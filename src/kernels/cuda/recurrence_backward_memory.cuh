// The memory that the backward of a recurrence has for one value head of one sequence.
#pragma once

#include <type_traits>

#include "kernels/recurrent.h"

namespace invar::cuda {

// 64-byte aligned pieces of a head's memory, or only their sizes.
struct HeadMemory {
  __host__ __device__ HeadMemory(std::byte* base, int64_t positions, int64_t key_size,
                                 int64_t value_size) {
    const int64_t chunks = (positions + kChunkSlots - 1) / kChunkSlots;
    const int64_t slots = chunks * kChunkSlots, state = key_size * value_size;
    const auto take = [&](auto*& piece, int64_t count) {
      if (base) piece = reinterpret_cast<std::remove_reference_t<decltype(piece)>>(base + bytes);
      bytes += round_up(count * static_cast<int64_t>(sizeof(*piece)), 64);
    };
    take(states, chunks * state);
    take(values, slots * value_size), take(rests, slots * value_size);
    take(dq, slots * key_size), take(dk, slots * key_size);
    take(d_state, state), take(d_of_queries, state);
    take(of_query, kSquare), take(of_key, kSquare);
    take(d_of_query, kSquare), take(d_of_key, kSquare);
    take(d_value, kChunkSlots * value_size), take(of_state, kChunkSlots * value_size);
    take(d_rest, kChunkSlots * value_size);
    take(sums, kChunkSlots * key_size), take(reader, kChunkSlots * key_size);
    take(read, kChunkSlots * key_size), take(written, kChunkSlots * key_size);
    take(behind, kChunkSlots * key_size);
  }
  static constexpr int64_t kSquare = int64_t{kChunkSlots} * kChunkSlots;

  int64_t bytes = 0;
  float* states = nullptr;             // [chunk][R][V]: before each chunk
  bf16_t* values = nullptr;            // [position][V]: u
  float* rests = nullptr;              // [position][V]: r
  float *dq = nullptr, *dk = nullptr;  // [position][R]: of this head alone
  float* d_state = nullptr;            // [R][V]: of the state behind the chunk
  float* d_of_queries = nullptr;       // [R][V]: what queries add to it
  // One chunk's. [row][slot]: weights, their gradients.
  float *of_query = nullptr, *of_key = nullptr, *d_of_query = nullptr, *d_of_key = nullptr;
  float *d_value = nullptr, *of_state = nullptr;  // [slot][V]
  bf16_t* d_rest = nullptr;                       // [slot][V]
  float* sums = nullptr;                          // [slot][channels], of decays
  // [slot][R]: dk of a key that reads others, is read, is written to the state; with channels, the
  // gradients of decays from this chunk's rows.
  float *reader = nullptr, *read = nullptr, *written = nullptr, *behind = nullptr;
};

// Numbers of a chunk in shared memory.
struct ChunkNumbers {
  float growth[kChunkSlots], until[kChunkSlots];        // of decays, without channels
  float of_sums[kChunkSlots], of_writing[kChunkSlots];  // gradients of decays
  float of_channels[kMostStateSize];                    // of a state and its gradient, by channel
};

}  // namespace invar::cuda
