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
  // Keys of the head in block 0, in words of 16 bits: bf16, or two to an f32.
  const uint16_t* keys;
  const uint16_t* values;
  int64_t key_block_stride;  // words from block to block
  int64_t value_block_stride;
  int32_t key_words, value_words;  // of a slot, padding included
  int32_t near;                    // leaves from slot 0 on that the core's cache holds
  float scale;                     // of ScoreScale
  float inner;                     // of a cap, or 0
};

// The tiles that one thread computes, in their order.
struct TileSource {
  static constexpr int kKept = 4;  // at a time
  // The next one, or null. It stays as it is while up to three more are taken.
  const AttentionTile* (*take)(void* of);
  void* of;
  const AttentionTile* next() const { return take(of); }
};

// Numerics 4 for all tiles of a source.
using Attend = void (*)(const TileSource& tiles);

// Adds to the score of each slot of a tile, scores[slot], what the tile's queries, heads of an
// indexer with these weights, give to it (numerics 4.6).
using AddIndexScores = void (*)(const AttentionTile& tile, const float* weights, float* scores);
void add_index_scores_avx2(const AttentionTile& tile, const float* weights, float* scores);
void add_index_scores_avx512(const AttentionTile& tile, const float* weights, float* scores);
void add_pair_index_scores_avx2(const AttentionTile& tile, const float* weights, float* scores);
void add_pair_index_scores_avx512(const AttentionTile& tile, const float* weights, float* scores);

constexpr int kVectorTileQueries = 16, kAmxTileQueries = 32;
void attend_avx2(const TileSource& tiles);
void attend_avx512(const TileSource& tiles);
void attend_amx(const TileSource& tiles);
// The same in the order `pair`.
void attend_pair_avx2(const TileSource& tiles);
void attend_pair_avx512(const TileSource& tiles);
// Attention of f32 queries, keys and values, kVectorTileQueries at most.
void attend_f32_avx2(const TileSource& tiles);
void attend_f32_avx512(const TileSource& tiles);

}  // namespace invar::cpu
