#include "kernels/cpu/indexer.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace invar::cpu {

namespace {

constexpr int32_t kPieceSlots =
    1024;  // their index keys stay in the cache while all heads read them

// Heads [head, head + tile.queries) of row t, and the slots from `lowest` to `highest`.
void fill_tile(const IndexScoresParams& p, int64_t t, int32_t head, AttentionTile& tile) {
  const KvLayer& kv = p.kv;
  for (int32_t i = 0; i < tile.queries; ++i) {
    tile.q[i] = p.q + t * p.q_stride + (head + i) * kv.index_dim;
    tile.first[i] = tile.lowest;
    tile.last[i] = tile.highest;
  }
  tile.table = p.tables[p.table_of[t]];
  tile.block_size = kv.block_size;
  tile.head_dim = kv.index_dim;
  tile.keys = tile.values = kv.index_keys;
  tile.key_block_stride = tile.value_block_stride = kv.index_block();
  tile.key_words = tile.value_words = kv.index_dim;
}

void score_piece(AddIndexScores add, const IndexScoresParams& p, int64_t t, int64_t piece) {
  AttentionTile tile = {};
  tile.lowest = static_cast<int32_t>(piece * kPieceSlots);
  tile.highest = std::min(p.positions[t], tile.lowest + kPieceSlots - 1);
  float* scores = p.scores + t * p.scores_stride;
  std::fill(scores + tile.lowest, scores + round_up(tile.highest + 1, kLeafPad), 0.0f);
  for (int32_t head = 0; head < p.heads; head += kVectorTileQueries) {
    tile.queries = std::min(p.heads - head, kVectorTileQueries);
    fill_tile(p, t, head, tile);
    add(tile, p.weights + t * p.weights_stride + head, scores);
  }
}

// Larger for a higher score; of a NaN 0. The sum makes +0 of -0.
uint32_t rank_of(float score) {
  if (score != score) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

// Chosen are all scores of a higher rank, and the first `equal` ones of this.
struct Threshold {
  uint32_t rank;
  int32_t equal;
};

// Digit by digit, the highest first: how many scores have each.
Threshold find_threshold(const float* scores, int64_t count, int32_t most) {
  uint32_t rank = 0, known = 0;
  int32_t wanted = most;
  for (const int shift : {21, 10, 0}) {
    const uint32_t digits = shift > 0 ? 2047 : 1023;
    int32_t counts[2048] = {};
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t own = rank_of(scores[i]);
      if ((own & known) == rank) ++counts[own >> shift & digits];
    }
    uint32_t digit = digits;
    while (counts[digit] < wanted) wanted -= counts[digit--];
    rank |= digit << shift;
    known |= digits << shift;
  }
  return {rank, wanted};
}

uint32_t word_at(const bf16_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// So many chosen slots of a row that become neighbours: those of a panel of values.
struct ChosenLeaf {
  int64_t block[kLeafPad], slot[kLeafPad];
  int count;
};

ChosenLeaf chosen_leaf(const GatherSlotsParams& p, int64_t t, int64_t leaf) {
  ChosenLeaf chosen;
  const int64_t first = leaf * kLeafPad;
  chosen.count = static_cast<int>(std::min<int64_t>(p.most - first, kLeafPad));
  for (int i = 0; i < chosen.count; ++i) {
    const int32_t slot = p.chosen[t * p.most + first + i];
    chosen.block[i] = p.tables[p.table_of[t]][slot / p.from.block_size];
    chosen.slot[i] = slot % p.from.block_size;
  }
  return chosen;
}

// Panels of 16 slots, each pair of elements a line of words.
void gather_keys(const GatherSlotsParams& p, const ChosenLeaf& chosen, int64_t block,
                 int64_t slot) {
  const int64_t pairs = round_up(p.from.head_dim, kLeafPad) / 2;
  for (int first = 0; first < kLeafPad; first += 16) {
    const int count = std::clamp(chosen.count - first, 0, 16);
    const bf16_t* from[16];
    for (int i = 0; i < count; ++i)
      from[i] =
          p.from.keys + p.from.key_index(chosen.block[first + i], 0, chosen.slot[first + i], 0);
    bf16_t* to = p.to.keys + p.to.key_index(block, 0, slot + first, 0);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      uint32_t words[16] = {};
      for (int i = 0; i < count; ++i) words[i] = word_at(from[i] + pair * 32);
      std::memcpy(to + pair * 32, words, sizeof words);
    }
  }
}

// Two slots make a line of words for 16 elements.
void gather_values(const GatherSlotsParams& p, const ChosenLeaf& chosen, int64_t block,
                   int64_t slot) {
  const auto line_of = [&](int i, int64_t e) {
    return p.from.values + p.from.value_index(chosen.block[i], 0, chosen.slot[i] / 2 * 2, e);
  };
  for (int64_t e = 0; e < p.from.head_dim; e += 16)
    for (int i = 0; i < kLeafPad; i += 2) {
      uint32_t words[16] = {};
      for (int half = 0; half < 2 && i + half < chosen.count; ++half) {
        const bf16_t* from = line_of(i + half, e);
        const int64_t shift = chosen.slot[i + half] % 2 * 16;
        for (int64_t k = 0; k < 16; ++k)
          words[k] |= (word_at(from + 2 * k) >> shift & 0xffff) << (16 * half);
      }
      std::memcpy(p.to.values + p.to.value_index(block, 0, slot + i, e), words, sizeof words);
    }
}

}  // namespace

void index_scores(AddIndexScores add, const IndexScoresParams& p, const Execution& on) {
  const auto pieces_of = [&](int64_t t) { return p.positions[t] / kPieceSlots + 1; };
  int64_t all = 0, before = 0;
  for (int64_t t = 0; t < p.rows; ++t) all += pieces_of(t);
  const auto [begin, end] = on.share.of(all);
  for (int64_t t = 0; t < p.rows && before < end; before += pieces_of(t++))
    for (int64_t piece = std::max<int64_t>(begin - before, 0);
         piece < std::min<int64_t>(end - before, pieces_of(t)); ++piece)
      score_piece(add, p, t, piece);
}

void choose_slots(const ChooseSlotsParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const float* scores = p.scores + t * p.scores_stride;
    const int32_t count = p.positions[t] + 1;
    auto [rank, equal] = find_threshold(scores, count, p.most);
    int32_t* to = p.chosen + t * p.most;
    for (int32_t slot = 0; slot < count; ++slot) {
      const uint32_t own = rank_of(scores[slot]);
      if (own > rank || (own == rank && equal-- > 0)) *to++ = slot;
    }
  }
}

void gather_slots(const GatherSlotsParams& p, const Execution& on) {
  const int64_t leaves = round_up(p.most, kLeafPad) / kLeafPad;
  const auto [begin, end] = on.share.of(p.rows * leaves);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t t = unit / leaves, leaf = unit % leaves, slot = leaf * kLeafPad;
    const ChosenLeaf chosen = chosen_leaf(p, t, leaf);
    const int64_t block = t * p.blocks() + slot / p.to.block_size;
    gather_keys(p, chosen, block, slot % p.to.block_size);
    gather_values(p, chosen, block, slot % p.to.block_size);
  }
}

}  // namespace invar::cpu
