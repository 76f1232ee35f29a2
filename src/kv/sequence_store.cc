#include "kv/sequence_store.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {

// The cache of one layer in 8 bits, but for where it lies.
StoredKv stored_of(CacheType type, int block_size, const StateShape& shape) {
  return {.type = type,
          .block_size = block_size,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim};
}

bool is_in_8_bits(CacheType type) {
  return type == CacheType::int8 || type == CacheType::fp8_e4m3;
}

// The type of the elements that attention reads.
DType element_of(CacheType type) {
  return type == CacheType::f32 ? DType::f32 : DType::bf16;
}

// Bytes of a block of one layer's index keys.
int64_t index_bytes(const StateShape& shape, int block_size) {
  return int64_t{block_size} * shape.index_dim * size_of(DType::bf16);
}

// Bytes of a block of one layer as attention and its indexer read it.
int64_t read_bytes(const StateShape& shape, int block_size, CacheType type) {
  if (shape.kv_heads == 0) return 0;
  const KvLayer one{
      .block_size = block_size, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  return shape.kv_heads * (one.key_block() + one.value_block()) * size_of(element_of(type)) +
         index_bytes(shape, block_size);
}

int64_t stored_bytes(const StateShape& shape, int block_size, CacheType type) {
  return shape.kv_heads == 0 ? 0 : stored_of(type, block_size, shape).block_bytes();
}

// Bytes of one chunk and of one state of a layer.
struct CellBytes {
  int64_t chunk, state;
};
CellBytes cell_of(const StateShape& shape, CacheType type) {
  const bool is_f32 = type == CacheType::f32;
  return {round_up(is_f32 ? shape.f32_chunk_bytes : shape.chunk_bytes, 256),
          round_up(is_f32 ? shape.f32_state_bytes : shape.state_bytes, 256)};
}

}  // namespace

int64_t SequenceStore::block_bytes(std::span<const StateShape> layers, int block_size,
                                   CacheType type) {
  int64_t all = 0, most = 0, stored = 0;
  for (const StateShape& shape : layers) {
    const int64_t bytes = read_bytes(shape, block_size, type);
    all += bytes;
    most = std::max(most, bytes);
    if (is_in_8_bits(type)) stored += stored_bytes(shape, block_size, type);
  }
  return is_in_8_bits(type) ? most + stored : all;
}

int64_t SequenceStore::chunk_bytes(std::span<const StateShape> layers, CacheType type) {
  int64_t all = 0;
  for (const StateShape& shape : layers) all += cell_of(shape, type).chunk;
  return all;
}

int64_t SequenceStore::state_bytes(std::span<const StateShape> layers, CacheType type) {
  int64_t all = 0;
  for (const StateShape& shape : layers) all += cell_of(shape, type).state;
  return all;
}

int64_t SequenceStore::cell_bytes(std::span<const StateShape> layers, CacheType type) {
  return chunk_bytes(layers, type) + state_bytes(layers, type);
}

SequenceStore::SequenceStore(Device& device, std::span<const StateShape> layers,
                             const StoreOptions& options)
    : options_(options) {
  CHECK(options.block_size == 32 || options.block_size == 64 || options.block_size == 128,
        "block size");
  place_blocks(device, layers);
  if (is_in_8_bits(options.type)) place_stored(device, layers);
  place_cells(device, layers);
}

void SequenceStore::place_blocks(Device& device, std::span<const StateShape> layers) {
  const bool is_shared = is_in_8_bits(options_.type);
  const DType element = element_of(options_.type);
  const auto bytes_of = [&](const StateShape& shape) {
    return options_.blocks * read_bytes(shape, options_.block_size, options_.type);
  };
  int64_t all = 0, most = 0;
  for (const StateShape& shape : layers) {
    all += bytes_of(shape);
    most = std::max(most, bytes_of(shape));
  }
  memory_ = {device, static_cast<size_t>(is_shared ? most : all), "the KV cache"};
  std::byte* keys = memory_.data();
  for (const StateShape& shape : layers) {
    KvLayer layer{.block_size = options_.block_size,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .layout = options_.layout,
                  .type = element,
                  .index_dim = shape.index_dim};
    const int64_t of_keys = shape.kv_heads == 0 ? 0 : shape.kv_heads * layer.key_block();
    layer.keys = reinterpret_cast<bf16_t*>(keys);
    layer.values = reinterpret_cast<bf16_t*>(keys + options_.blocks * of_keys * size_of(element));
    std::byte* const end = keys + bytes_of(shape);
    if (shape.index_dim > 0)
      layer.index_keys = reinterpret_cast<bf16_t*>(
          end - options_.blocks * index_bytes(shape, options_.block_size));
    layers_.push_back(layer);
    if (!is_shared) keys = end;
  }
}

void SequenceStore::place_stored(Device& device, std::span<const StateShape> layers) {
  int64_t all = 0;
  for (const StateShape& shape : layers)
    all += options_.blocks * stored_bytes(shape, options_.block_size, options_.type);
  stored_ = {device, static_cast<size_t>(all), "the KV cache"};
  uint8_t* data = stored_.data();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].kv_heads == 0) continue;
    layers_[i].stored = stored_of(options_.type, options_.block_size, layers[i]);
    layers_[i].stored.data = data;
    data += options_.blocks * layers_[i].stored.block_bytes();
  }
}

void SequenceStore::place_cells(Device& device, std::span<const StateShape> layers) {
  const int chunks = options_.cells + options_.scratch.chunks;
  const int states = options_.cells + options_.scratch.states + options_.snapshots;
  int64_t all = 0;
  for (const StateShape& shape : layers) {
    const CellBytes cell = cell_of(shape, options_.type);
    all += chunks * cell.chunk + states * cell.state;
  }
  cells_ = {device, static_cast<size_t>(all), "the states of sequences"};
  std::byte* data = cells_.data();
  const auto take = [&](int count, int64_t bytes) {
    const Cells cells{data, bytes};
    data += count * bytes;
    return cells;
  };
  for (const StateShape& shape : layers) {
    chunks_.push_back(take(chunks, cell_of(shape, options_.type).chunk));
    states_.push_back(take(states, cell_of(shape, options_.type).state));
  }
}

void SequenceStore::copy_cells(Stream& stream, std::span<const CellCopy> chunks,
                               std::span<const CellCopy> states) const {
  const auto copy = [&](const Cells& cells, const CellCopy& c) {
    if (cells.bytes > 0)
      stream.copy_rows(cells.at<std::byte>(c.to), cells.bytes, cells.at<std::byte>(c.from),
                       cells.bytes, cells.bytes, 1);
  };
  for (const Cells& layer : chunks_)
    for (const CellCopy& c : chunks) copy(layer, c);
  for (const Cells& layer : states_)
    for (const CellCopy& c : states) copy(layer, c);
}

void SequenceStore::vacate() {
  memory_.vacate();
  stored_.vacate();
  cells_.vacate();
}

void SequenceStore::occupy() {
  memory_.occupy("the KV cache");
  stored_.occupy("the KV cache");
  cells_.occupy("the states of sequences");
}

}  // namespace invar
