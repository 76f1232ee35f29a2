#include "kv/kv_storage.h"

#include "base/check.h"

namespace invar {

int64_t KvStorage::page_bytes(int layers, int page_places, int kv_heads, int head_dim) {
  const KvLayer one{.page_places = page_places, .kv_heads = kv_heads, .head_dim = head_dim};
  return int64_t{layers} * kv_heads * (one.key_block() + one.value_block()) *
         static_cast<int64_t>(sizeof(bf16_t));
}

KvStorage::KvStorage(Device& device, int layers, int pages, int page_places, int kv_heads,
                     int head_dim, CacheLayout layout)
    : pages_(pages),
      page_places_(page_places),
      memory_(device, pages * page_bytes(layers, page_places, kv_heads, head_dim) / sizeof(bf16_t),
              "the KV cache") {
  CHECK(page_places == 32 || page_places == 64 || page_places == 128, "page size");
  bf16_t* next = memory_.data();
  for (int i = 0; i < layers; ++i) {
    KvLayer layer{
        .page_places = page_places, .kv_heads = kv_heads, .head_dim = head_dim, .layout = layout};
    layer.keys = next;
    layer.values = next + int64_t{pages} * kv_heads * layer.key_block();
    next = layer.values + int64_t{pages} * kv_heads * layer.value_block();
    layers_.push_back(layer);
  }
}

}  // namespace invar
