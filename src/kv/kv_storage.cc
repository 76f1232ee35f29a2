#include "kv/kv_storage.h"

#include "base/check.h"

namespace invar {

namespace {

// Of one layer in 8 bits, but for where it lies.
StoredKv stored_of(CacheType type, int block_size, int kv_heads, int head_dim) {
  return {.type = type, .block_size = block_size, .kv_heads = kv_heads, .head_dim = head_dim};
}

// Elements of a block of one layer, in bf16 or f32.
int64_t block_elements(int block_size, int kv_heads, int head_dim) {
  const KvLayer one{.block_size = block_size, .kv_heads = kv_heads, .head_dim = head_dim};
  return kv_heads * (one.key_block() + one.value_block());
}

bool is_in_8_bits(CacheType type) {
  return type == CacheType::int8 || type == CacheType::fp8_e4m3;
}

// Of what attention reads.
DType element_of(CacheType type) {
  return type == CacheType::f32 ? DType::f32 : DType::bf16;
}

}  // namespace

int64_t KvStorage::block_bytes(int layers, int block_size, int kv_heads, int head_dim,
                               CacheType type) {
  const bool is_stored = is_in_8_bits(type);
  const int64_t read = is_stored ? layers > 0 : layers;
  return read * block_elements(block_size, kv_heads, head_dim) * size_of(element_of(type)) +
         (is_stored ? layers * stored_of(type, block_size, kv_heads, head_dim).block_bytes() : 0);
}

KvStorage::KvStorage(Device& device, int layers, int blocks, int block_size, int kv_heads,
                     int head_dim, CacheLayout layout, int first_layer, CacheType type)
    : blocks_(blocks), block_size_(block_size), first_layer_(first_layer) {
  CHECK(block_size == 32 || block_size == 64 || block_size == 128, "block size");
  const bool is_stored = is_in_8_bits(type);
  const int64_t element = size_of(element_of(type));
  const int64_t layer_bytes = blocks * block_elements(block_size, kv_heads, head_dim) * element;
  const StoredKv one = stored_of(type, block_size, kv_heads, head_dim);
  memory_ = {device, static_cast<size_t>(layer_bytes * (is_stored ? layers > 0 : layers)),
             "the KV cache"};
  if (is_stored)
    stored_ = {device, static_cast<size_t>(int64_t{layers} * blocks * one.block_bytes()),
               "the KV cache"};
  for (int i = 0; i < layers; ++i) {
    KvLayer layer{.block_size = block_size,
                  .kv_heads = kv_heads,
                  .head_dim = head_dim,
                  .layout = layout,
                  .type = element_of(type)};
    std::byte* keys = memory_.data() + (is_stored ? 0 : i * layer_bytes);
    layer.keys = reinterpret_cast<bf16_t*>(keys);
    layer.values =
        reinterpret_cast<bf16_t*>(keys + int64_t{blocks} * kv_heads * layer.key_block() * element);
    if (is_stored) {
      layer.stored = one;
      layer.stored.data = stored_.data() + int64_t{i} * blocks * one.block_bytes();
    }
    layers_.push_back(layer);
  }
}

void KvStorage::vacate() {
  memory_.vacate();
  stored_.vacate();
}

void KvStorage::occupy() {
  memory_.occupy("the KV cache");
  stored_.occupy("the KV cache");
}

}  // namespace invar
