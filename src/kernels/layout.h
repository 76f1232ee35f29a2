// How arrays that kernels share lie in memory: activations, packed weights, the blocks of the
// cache.
#pragma once

#include <cstdint>

#include "numerics/cache_type.h"
#include "numerics/dtype.h"

namespace invar {

constexpr int kPanelWidth = 16;     // outputs in one panel of a packed weight
constexpr int kLeafPad = 32;        // inner sizes are padded with zeros to this many elements
constexpr int kMostSplitK = 8;      // parts that a product is cut into (numerics 2)
constexpr int kSplitSlots = 128;    // slots in one split of attention (numerics 4)
constexpr int kMostIndexDim = 256;  // elements of an indexer's head

constexpr int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Elements between rows of a bf16 activation with K columns: whole leaves, and on a CPU an odd
// number of cache lines, so that the 16 rows of a tile lie in 16 different sets of the cache.
// Columns K .. round_up(K, 32) are kept zero.
constexpr int64_t activation_stride(int64_t k) {
  const int64_t padded = round_up(k, kLeafPad);
  return padded % 64 ? padded : padded + 32;
}

// Index of element (output, inner) in a packed bf16 / f32 matrix with the given inner size.
constexpr int64_t packed_index_bf16(int64_t output, int64_t inner, int64_t k) {
  const int64_t panel = output / 16 * (round_up(k, kLeafPad) * 16);
  return panel + inner / 32 * 512 + inner % 32 / 2 * 32 + output % 16 * 2 + inner % 2;
}
constexpr int64_t packed_index_f32(int64_t output, int64_t inner, int64_t k) {
  return output / 16 * (round_up(k, kLeafPad) * 16) + inner * 16 + output % 16;
}

// One layer's keys and values in blocks. A (block, kv head) block of keys is a packed matrix of
// block_size outputs and E inner elements; a block of values is, for every 32 slots, a packed
// matrix of E outputs and 32 inner elements:
//   keys   [block][G][P/16][E/32][16 pairs of e][16 slots][2]
//   values [block][G][P/32][E/16][16 pairs of slots][16 e][2]
// so both products of attention read them as packed weights. Or, where a table of operations wants
// it (Kernels::cache), both are rows of round_up(E, 8) elements:
//   [block][G][P][round_up(E, 8)]
// Of f32 elements (weight mode exact, numerics 0.1), in panels alone, an element has a line of its
// own in place of half a pair's: [G][P/16][E][16 slots] and [G][P/32][E/16][32 slots][16 e].
// Only ever finite values; zero where never written.
enum class CacheLayout : uint8_t { panels, rows };

// The same in 8 bits (numerics 4.2), in rows whatever the layout of those that attention reads:
//   [block][keys, values][G] of [P][round_up(E, 16)] bytes and, of int8, [P] scales
struct StoredKv {
  uint8_t* data = nullptr;  // null: the cache is bf16
  CacheType type = CacheType::bf16;
  int32_t block_size = 0, kv_heads = 0, head_dim = 0;  // as KvLayer's

  struct Place {
    uint8_t* row;
    float* scale;  // of int8
  };
  constexpr int64_t row_bytes() const { return round_up(head_dim, 16); }
  constexpr int64_t head_bytes() const {
    const int64_t scale = type == CacheType::int8 ? sizeof(float) : 0;
    return block_size * (row_bytes() + scale);
  }
  constexpr int64_t block_bytes() const { return 2 * kv_heads * head_bytes(); }

  Place key(int64_t block, int64_t head, int64_t slot) const { return place(block, head, slot); }
  Place value(int64_t block, int64_t head, int64_t slot) const {
    return place(block, kv_heads + head, slot);
  }

 private:
  Place place(int64_t block, int64_t head, int64_t slot) const {
    uint8_t* first = data + block * block_bytes() + head * head_bytes();
    return {first + slot * row_bytes(),
            reinterpret_cast<float*>(first + block_size * row_bytes()) + slot};
  }
};

struct KvLayer {
  bf16_t* keys = nullptr;
  bf16_t* values = nullptr;
  int32_t block_size = 0;  // P: 32, 64 or 128
  int32_t kv_heads = 0;    // G
  int32_t head_dim = 0;    // E
  CacheLayout layout = CacheLayout::panels;
  DType type = DType::bf16;  // or f32: of keys and values, and of the queries that meet them
  // Where there are any, keys and values above are this step's alone: written there first, and read
  // from here before attention.
  StoredKv stored;

  // Layers with an indexer (numerics 4.6) have a key of bf16 for each slot, in panels as the keys
  // above, [block][P/16][I/32][16 pairs of elements][16 slots][2].
  bf16_t* index_keys = nullptr;
  int32_t index_dim = 0;  // I, a multiple of 32

  constexpr bool is_f32() const { return type == DType::f32; }
  float* f32_keys() const { return reinterpret_cast<float*>(keys); }
  float* f32_values() const { return reinterpret_cast<float*>(values); }
  constexpr int64_t row_elements() const { return round_up(head_dim, 8); }
  constexpr int64_t key_block() const {
    return block_size * (layout == CacheLayout::rows ? row_elements() : round_up(head_dim, 32));
  }
  constexpr int64_t value_block() const {
    return block_size * (layout == CacheLayout::rows ? row_elements() : round_up(head_dim, 16));
  }
  constexpr int64_t row_index(int64_t block, int64_t head, int64_t slot, int64_t e) const {
    return ((block * kv_heads + head) * block_size + slot) * row_elements() + e;
  }
  constexpr int64_t key_index(int64_t block, int64_t head, int64_t slot, int64_t e) const {
    if (layout == CacheLayout::rows) return row_index(block, head, slot, e);
    return (block * kv_heads + head) * key_block() + packed_index(slot, e, head_dim);
  }
  constexpr int64_t value_index(int64_t block, int64_t head, int64_t slot, int64_t e) const {
    if (layout == CacheLayout::rows) return row_index(block, head, slot, e);
    return (block * kv_heads + head) * value_block() + slot / 32 * 32 * round_up(head_dim, 16) +
           packed_index(e, slot % 32, 32);
  }
  constexpr int64_t index_block() const { return int64_t{block_size} * index_dim; }
  constexpr int64_t index_at(int64_t block, int64_t slot, int64_t e) const {
    return block * index_block() + packed_index_bf16(slot, e, index_dim);
  }
  constexpr int64_t packed_index(int64_t output, int64_t inner, int64_t k) const {
    return is_f32() ? packed_index_f32(output, inner, k) : packed_index_bf16(output, inner, k);
  }
};

// Equal pieces of memory, one after the other; they begin at multiples of 64 bytes.
struct Cells {
  void* data = nullptr;
  int64_t bytes = 0;  // from cell to cell

  template <typename T>
  constexpr T* at(int64_t cell) const {
    return static_cast<T*>(static_cast<void*>(static_cast<char*>(data) + cell * bytes));
  }
};

// All of cell `from` goes to cell `to`.
struct CellCopy {
  int32_t from, to;
  bool operator==(const CellCopy&) const = default;
};

// Keys and values of slots [begin, end) of block `from` go to the same slots of block `to`.
struct SlotCopy {
  int32_t from, to;
  int32_t begin, end;  // within the block
  bool operator==(const SlotCopy&) const = default;
};

}  // namespace invar
