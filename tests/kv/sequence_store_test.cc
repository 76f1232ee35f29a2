#include "kv/sequence_store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/device.h"

namespace invar {
namespace {

// Layers of three kinds: keys and values, of two shapes; a state and nothing of positions; neither.
const std::vector<StateShape> kLayers{
    {.kv_heads = 2, .head_dim = 64},
    {.chunk_bytes = 1000, .state_bytes = 500, .f32_chunk_bytes = 2000, .f32_state_bytes = 700},
    {},
    {.kv_heads = 1, .head_dim = 128}};

struct Piece {
  std::byte* begin;
  int64_t bytes;
};

TEST(SequenceStore, LayersOfAllKindsLieApart) {
  const auto device = make_host_device();
  const StoreOptions options{
      .blocks = 3, .block_size = 32, .cells = 1, .scratch = {3, 1}, .first_layer = 10};
  SequenceStore store(*device, kLayers, options);
  std::vector<Piece> pieces;
  for (int layer = 10; layer < 14; ++layer) {
    const KvLayer& kv = store.layer(layer);
    if (kv.kv_heads > 0) {
      pieces.push_back(
          {reinterpret_cast<std::byte*>(kv.keys), 3 * kv.kv_heads * kv.key_block() * 2});
      pieces.push_back(
          {reinterpret_cast<std::byte*>(kv.values), 3 * kv.kv_heads * kv.value_block() * 2});
    }
    if (kLayers[layer - 10].chunk_bytes > 0) {
      pieces.push_back({store.chunks(layer).at<std::byte>(0), 4 * store.chunks(layer).bytes});
      pieces.push_back({store.states(layer).at<std::byte>(0), 2 * store.states(layer).bytes});
      EXPECT_GE(store.chunks(layer).bytes, 1000);
      EXPECT_GE(store.states(layer).bytes, 500);
    }
  }
  ASSERT_EQ(pieces.size(), 6u);
  for (size_t i = 0; i < pieces.size(); ++i)
    std::fill_n(pieces[i].begin, pieces[i].bytes, static_cast<std::byte>(i + 1));
  for (size_t i = 0; i < pieces.size(); ++i)
    EXPECT_EQ(std::count(pieces[i].begin, pieces[i].begin + pieces[i].bytes,
                         static_cast<std::byte>(i + 1)),
              pieces[i].bytes)
        << i;
}

TEST(SequenceStore, CountsWhatItTakes) {
  const auto attention = [](int heads, int size) {
    return SequenceStore::block_bytes(std::vector{StateShape{heads, size}}, 32);
  };
  EXPECT_EQ(SequenceStore::block_bytes(kLayers, 32), attention(2, 64) + attention(1, 128));
  EXPECT_EQ(SequenceStore::cell_bytes(kLayers), 1024 + 512);
  EXPECT_EQ(SequenceStore::cell_bytes(kLayers, CacheType::f32), 2048 + 768);
  // In 8 bits the largest layer is there once as it is read.
  const auto stored = SequenceStore::block_bytes(kLayers, 32, CacheType::int8);
  EXPECT_GT(stored, attention(2, 64));
  EXPECT_LT(stored, 2 * (attention(2, 64) + attention(1, 128)));
}

}  // namespace
}  // namespace invar
