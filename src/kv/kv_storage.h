// The memory behind the blocks: keys and values of every layer (kernels.h, KvLayer).
#pragma once

#include <vector>

#include "device/vacatable.h"
#include "kernels/layout.h"

namespace invar {

class KvStorage {
 public:
  // `blocks` blocks of `block_size` (32, 64 or 128) slots for each of `layers` layers, zeroed.
  // The first of them is the model's layer `first_layer`. In 8 bits they share one layer's memory
  // in bf16, for the layer that is computed.
  KvStorage(Device& device, int layers, int blocks, int block_size, int kv_heads, int head_dim,
            CacheLayout layout = CacheLayout::panels, int first_layer = 0,
            CacheType type = CacheType::bf16);

  const KvLayer& layer(int index) const { return layers_[index - first_layer_]; }
  // All of them, by index - first_layer.
  const std::vector<KvLayer>& layers() const { return layers_; }
  int blocks() const { return blocks_; }
  int block_size() const { return block_size_; }
  // Gives the memory back, and takes it again, zeroed; its addresses stay.
  void vacate();
  void occupy();
  // Bytes of one block over all layers, in either layout.
  static int64_t block_bytes(int layers, int block_size, int kv_heads, int head_dim,
                             CacheType type = CacheType::bf16);

 private:
  int blocks_, block_size_, first_layer_;
  VacatableArray<std::byte> memory_;
  VacatableArray<uint8_t> stored_;  // in 8 bits
  std::vector<KvLayer> layers_;
};

}  // namespace invar
