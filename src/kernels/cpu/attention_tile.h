// One share of attention as plain data, because files for wide instruction sets include no other
// header: queries that read the keys and values of one head through one block table.
#pragma once

#include <cstdint>

namespace invar::cpu {

constexpr int kMaxTileQueries = 32;

struct AttentionTile {
  int32_t queries;                     // at least 1
  const uint16_t* q[kMaxTileQueries];  // [round_up(E, 32)], as keys and values are
  int32_t first[kMaxTileQueries];      // a query sees slots first .. last
  int32_t last[kMaxTileQueries];
  void* out[kMaxTileQueries];  // [E]
  int32_t lowest, highest;     // of all first and last
  bool out_is_bf16;
  float* max;  // or null: M and L, query i's at stat[i]
  float* sum;
  int64_t stat[kMaxTileQueries];
  const float* sinks[kMaxTileQueries];  // each null, or the sink of the query's head

  const int32_t* table;
  int32_t block_size;
  int32_t head_dim;  // E
  // Of the head in block 0, in words of 16 bits: bf16, or two to an f32.
  const uint16_t* keys;
  const uint16_t* values;
  int64_t key_block_stride;  // words from block to block
  int64_t value_block_stride;
  int32_t key_words, value_words;  // of a slot, padding included
  float scale;                     // of ScoreScale
  float inner;                     // of a cap, or 0
};

// Numerics 4 for a tile. `next`, or null, is the tile that the same thread computes afterwards: its
// first keys and values are fetched meanwhile.
using Attend = void (*)(const AttentionTile& tile, const AttentionTile* next);

constexpr int kVectorTileQueries = 16, kAmxTileQueries = 32;
void attend_avx2(const AttentionTile& tile, const AttentionTile* next);
void attend_avx512(const AttentionTile& tile, const AttentionTile* next);
void attend_amx(const AttentionTile& tile, const AttentionTile* next);
// The same in the order `pair`.
void attend_pair_avx2(const AttentionTile& tile, const AttentionTile* next);
void attend_pair_avx512(const AttentionTile& tile, const AttentionTile* next);
// Of f32 queries, keys and values, kVectorTileQueries at most.
void attend_f32_avx2(const AttentionTile& tile, const AttentionTile* next);
void attend_f32_avx512(const AttentionTile& tile, const AttentionTile* next);

}  // namespace invar::cpu
