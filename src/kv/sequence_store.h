// The memory for what sequences leave in every layer: blocks of keys and values (kernels/layout.h,
// KvLayer), and cells.
#pragma once

#include <span>
#include <vector>

#include "device/stream.h"
#include "device/vacatable.h"
#include "kernels/layout.h"
#include "kv/state_shape.h"

namespace invar {

struct StoreOptions {
  int blocks = 0;
  int block_size = 32;   // slots: 32, 64 or 128
  int cells = 0;         // of sequences, where layers have states
  ScratchCells scratch;  // behind them
  int snapshots = 0;     // of states, behind these
  int first_layer = 0;   // the model's number of the first layer here
  CacheLayout layout = CacheLayout::panels;
  CacheType type = CacheType::bf16;
};

class SequenceStore {
 public:
  // Zeroed, for layers of these shapes. Keys and values in 8 bits share one layer's memory in bf16,
  // for the layer that is computed.
  SequenceStore(Device& device, std::span<const StateShape> layers, const StoreOptions& options);

  const KvLayer& layer(int index) const { return layers_[at(index)]; }
  Cells chunks(int index) const { return chunks_[at(index)]; }
  Cells states(int index) const { return states_[at(index)]; }
  // All of them, from the first layer on.
  const std::vector<KvLayer>& layers() const { return layers_; }
  int blocks() const { return options_.blocks; }
  int block_size() const { return options_.block_size; }
  int cells() const { return options_.cells; }
  // One after the other, in every layer.
  void copy_cells(Stream& stream, std::span<const CellCopy> chunks,
                  std::span<const CellCopy> states) const;
  // Gives the memory back, and takes it again, zeroed; its addresses stay.
  void vacate();
  void occupy();
  // Bytes of one block, and of one chunk and one state, over all layers.
  static int64_t block_bytes(std::span<const StateShape> layers, int block_size,
                             CacheType type = CacheType::bf16);
  static int64_t cell_bytes(std::span<const StateShape> layers, CacheType type = CacheType::bf16);
  static int64_t chunk_bytes(std::span<const StateShape> layers, CacheType type = CacheType::bf16);
  static int64_t state_bytes(std::span<const StateShape> layers, CacheType type = CacheType::bf16);

 private:
  size_t at(int index) const { return static_cast<size_t>(index - options_.first_layer); }
  void place_blocks(Device& device, std::span<const StateShape> layers);
  void place_stored(Device& device, std::span<const StateShape> layers);
  void place_cells(Device& device, std::span<const StateShape> layers);

  StoreOptions options_;
  VacatableArray<std::byte> memory_;
  VacatableArray<uint8_t> stored_;  // keys and values in 8 bits
  VacatableArray<std::byte> cells_;
  std::vector<KvLayer> layers_;
  std::vector<Cells> chunks_, states_;
};

}  // namespace invar
