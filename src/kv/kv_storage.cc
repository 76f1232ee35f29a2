#include "kv/kv_storage.h"

#include "base/check.h"

namespace invar {

int64_t KvStorage::block_bytes(int layers, int block_size, int kv_heads, int head_dim) {
  const KvLayer one{.block_size = block_size, .kv_heads = kv_heads, .head_dim = head_dim};
  return int64_t{layers} * kv_heads * (one.key_block() + one.value_block()) *
         static_cast<int64_t>(sizeof(bf16_t));
}

KvStorage::KvStorage(Device& device, int layers, int blocks, int block_size, int kv_heads,
                     int head_dim, CacheLayout layout, int first_layer)
    : blocks_(blocks),
      block_size_(block_size),
      first_layer_(first_layer),
      memory_(device, blocks * block_bytes(layers, block_size, kv_heads, head_dim) / sizeof(bf16_t),
              "the KV cache") {
  CHECK(block_size == 32 || block_size == 64 || block_size == 128, "block size");
  bf16_t* next = memory_.data();
  for (int i = 0; i < layers; ++i) {
    KvLayer layer{
        .block_size = block_size, .kv_heads = kv_heads, .head_dim = head_dim, .layout = layout};
    layer.keys = next;
    layer.values = next + int64_t{blocks} * kv_heads * layer.key_block();
    next = layer.values + int64_t{blocks} * kv_heads * layer.value_block();
    layers_.push_back(layer);
  }
}

}  // namespace invar
