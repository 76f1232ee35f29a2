#include "model/stored_types.h"

#include <algorithm>

#include "base/error.h"
#include "numerics/block_dot.h"

namespace invar {

// Whether all of them are integers, or e4m3, and multiplied so; some and others cannot be one
// product.
bool StoredTypes::are_quantised(const std::vector<PackedPart>& parts) const {
  if (!arithmetic_.is_quantised()) return false;
  const DType type = arithmetic_.quantised;
  const auto is_such = [&](const PackedPart& part) {
    return source_.info(part.tensor).dtype == type;
  };
  const auto count = std::ranges::count_if(parts, is_such);
  if (count != 0 && count != std::ssize(parts)) {
    const auto other = std::ranges::find_if_not(parts, is_such);
    fail("{}: expected {} as in the tensors of the same product, found {}",
         source_.where(other->tensor), type == DType::i8 ? "int8" : "f8_e4m3",
         name_of(source_.info(other->tensor).dtype));
  }
  if (count != 0) expect_whole_blocks(parts[0], type);
  return count != 0;
}

// A rank's columns have scales of their own.
void StoredTypes::expect_whole_blocks(const PackedPart& part, DType type) const {
  const int64_t block = storage_of(type).block;
  if (part.first_column % block != 0 || part.columns % block != 0)
    fail(
        "{}: expected ranks with whole blocks of {} columns, found {} columns from {} on; use "
        "fewer ranks, or the twin",
        source_.where(part.tensor), block, part.columns, part.first_column);
}

void StoredTypes::expect_multiplied_blocks(const PackedPart& part) const {
  const DType type = source_.info(part.tensor).dtype;
  expect_whole_blocks(part, type);
  if (storage_of(type).has_blocks() && part.columns > orders::kMostBlockColumns)
    fail("{}: expected rows of at most {} columns for --weights blocks, found {}",
         source_.where(part.tensor), orders::kMostBlockColumns, part.columns);
}

// The type that a matrix of these parts is stored in: blocks as they are, where its parts agree
// and none begins or ends inside a block; else the elements that they stand for.
DType StoredTypes::type_of(const std::vector<PackedPart>& parts) const {
  const DType first = source_.info(parts[0].tensor).dtype;
  const StorageType& storage = storage_of(first);
  const bool fits = std::ranges::all_of(parts, [&](const PackedPart& part) {
    return source_.info(part.tensor).dtype == first && part.first_column % storage.block == 0 &&
           part.columns % storage.block == 0;
  });
  const bool on_gpu_too = first != DType::mxfp4;
  const bool stays = storage.has_blocks() && fits && (on_gpu_too || is_host_) &&
                     storage.element == arithmetic_.weights && !arithmetic_.is_baseline;
  return stays ? first : arithmetic_.weights;
}

}  // namespace invar
