// The memory behind the pages: keys and values of every layer (kernels.h, KvLayer).
#pragma once

#include <vector>

#include "device/device.h"
#include "kernels/layout.h"

namespace invar {

class KvStorage {
 public:
  // `pages` pages of `page_places` (32, 64 or 128) places for each of `layers` layers, zeroed.
  KvStorage(Device& device, int layers, int pages, int page_places, int kv_heads, int head_dim,
            CacheLayout layout = CacheLayout::panels);

  const KvLayer& layer(int index) const { return layers_[index]; }
  int pages() const { return pages_; }
  int page_places() const { return page_places_; }
  // Bytes of one page over all layers, in either layout.
  static int64_t page_bytes(int layers, int page_places, int kv_heads, int head_dim);

 private:
  int pages_, page_places_;
  DeviceArray<bf16_t> memory_;
  std::vector<KvLayer> layers_;
};

}  // namespace invar
