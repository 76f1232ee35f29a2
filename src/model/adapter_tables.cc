#include "model/adapter_tables.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/pack.h"

namespace invar {

namespace {

AdapterSlot slot_of(const AdapterWeights::Product& product) {
  AdapterSlot slot{.a = product.a.data, .tensors = static_cast<int32_t>(product.outputs.size())};
  CHECK(slot.tensors <= kMostAdapterTensors, "tensors of one product with adapters");
  for (size_t i = 0; i < product.outputs.size(); ++i) {
    const AdapterOutputs& of = product.outputs[i];
    slot.outputs[i] = {.b = of.b.data,
                       .scale = of.scale,
                       .n = static_cast<int32_t>(of.b.n),
                       .rank = static_cast<int32_t>(of.b.k),
                       .inner = static_cast<int32_t>(of.inner),
                       .output = static_cast<int32_t>(of.output),
                       .step = of.step};
  }
  return slot;
}

// Numbers of tiles that steps are recorded for.
int32_t with_spare(int32_t tiles) {
  constexpr int32_t kFew = 8;
  if (tiles > kFew) return static_cast<int32_t>(round_up(tiles, kFew));
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(tiles)));
}

}  // namespace

void AdapterTableBuilder::put(const Decoder& decoder, int32_t slot, const AdapterWeights* weights) {
  const auto at = static_cast<size_t>(slot);
  const bool is_new = at >= weights_.size();
  if (is_new) weights_.resize(std::bit_ceil(at + 1));
  weights_[at] = weights;
  if (weights) add_products(*weights);
  if (is_new || std::ssize(products_) != tables_.slot_stride) return make(decoder);
  write(slot);
  const int64_t first = slot * tables_.slot_stride;
  decoder.device().upload(slots_.data() + first, host_slots_.data() + first,
                          static_cast<size_t>(tables_.slot_stride) * sizeof(AdapterSlot));
}

// Gives a number to matrices that no adapter before has stood beside.
void AdapterTableBuilder::add_products(const AdapterWeights& weights) {
  for (const auto& [matrix, beside] : weights.products()) {
    Product& product = products_.try_emplace(matrix, Product{std::ssize(products_)}).first->second;
    product.tensors = std::max(product.tensors, static_cast<int32_t>(beside.outputs.size()));
  }
}

// A table with every slot, also one that holds nothing: its rows may be in a step.
void AdapterTableBuilder::make(const Decoder& decoder) {
  tables_.slot_stride = std::ssize(products_);
  host_slots_.resize(weights_.size() * products_.size());
  if (host_slots_.empty()) return;
  for (int64_t at = 0; at < std::ssize(weights_); ++at) write(at);
  DeviceArray<AdapterSlot> slots(decoder.device(), host_slots_.size(), "tables of adapters");
  decoder.device().upload(slots.data(), host_slots_.data(),
                          host_slots_.size() * sizeof(AdapterSlot));
  slots_ = std::move(slots);
  tables_.slots = slots_.data();
}

void AdapterTableBuilder::write(int64_t slot) {
  AdapterSlot* first = host_slots_.data() + slot * tables_.slot_stride;
  std::fill_n(first, tables_.slot_stride, AdapterSlot());
  const AdapterWeights* weights = weights_[static_cast<size_t>(slot)];
  if (!weights) return;
  for (const auto& [matrix, product] : weights->products())
    first[products_.at(matrix).number] = slot_of(product);
}

void AdapterTableBuilder::build(const Decoder& decoder, std::span<const RowsOfSlot> adapted,
                                int64_t rows) {
  // With so many rows reading matrices again and again takes longer than what the tiles lack.
  constexpr int64_t kManyRows = 256;
  const Kernels& kernels = decoder.kernels;
  const bool has_many = kernels.order == Order::hopper && rows > kManyRows;
  tables_.tile_rows = has_many ? kManyAdapterRows : kFewAdapterRows;
  int32_t tiles = 0;
  for (const RowsOfSlot& of : adapted) {
    int32_t count = 0;
    for (const RowRun& run : of.runs) count += run.count;
    tiles += (count + tables_.tile_rows - 1) / tables_.tile_rows;
  }
  tables_.num_tiles = with_spare(tiles);
  const size_t num_tiles = static_cast<size_t>(tables_.num_tiles);
  upload_.begin(decoder.execution, StepUpload::bytes_of<int32_t>(static_cast<size_t>(rows)) +
                                       StepUpload::bytes_of<AdapterTile>(num_tiles));
  const auto rows_of = upload_.take<int32_t>(static_cast<size_t>(rows));
  const auto tiles_of = upload_.take<AdapterTile>(num_tiles);
  place_rows(adapted, rows_of.host, tiles_of.host);
  tables_.rows = rows_of.device;
  tables_.tiles = tiles_of.device;
  upload_.send(decoder.execution);
}

void AdapterTableBuilder::place_rows(std::span<const RowsOfSlot> adapted, std::span<int32_t> rows,
                                     std::span<AdapterTile> tiles) const {
  int32_t placed = 0;
  size_t tile = 0;
  for (const RowsOfSlot& of : adapted) {
    const int32_t first = placed;
    for (const RowRun& run : of.runs)
      for (int32_t t = run.first; t < run.first + run.count; ++t)
        rows[static_cast<size_t>(placed++)] = t;
    for (int32_t at = first; at < placed; at += tables_.tile_rows)
      tiles[tile++] = {of.slot, at, std::min(tables_.tile_rows, placed - at)};
  }
  std::fill(tiles.begin() + static_cast<ptrdiff_t>(tile), tiles.end(), AdapterTile());
}

AdapterTables AdapterTableBuilder::beside(const Matrix& w, int64_t most_rank) const {
  AdapterTables tables = tables_;
  tables.slots = nullptr;
  const auto found = products_.find(w.data);
  if (found == products_.end()) return tables;
  const Product& product = found->second;
  tables.slots = slots_.data() + product.number;
  tables.inner_units =
      product.tensors * static_cast<int32_t>(round_up(most_rank, kAdapterUnit) / kAdapterUnit);
  tables.outputs = as_one(w).n;
  tables.k = w.k;
  return tables;
}

}  // namespace invar
