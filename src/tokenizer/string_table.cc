#include "tokenizer/string_table.h"

#include <bit>

#include "base/check.h"

namespace invar::tokenizer {

void StringTable::resize(size_t expected) {
  std::vector<Slot> old(std::bit_ceil(2 * expected + 2));
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.key.data()) slots_[place_of(slot.key, slot.hash)] = slot;
}

bool StringTable::insert(std::string_view key, int32_t value) {
  CHECK(key.data() != nullptr, "a null string marks an empty slot");
  if (2 * (size_ + 1) > slots_.size()) resize(2 * (size_ + 1));
  const uint32_t hash = hash_of(key);
  Slot& slot = slots_[place_of(key, hash)];
  if (slot.key.data()) return false;
  slot = {key, hash, value};
  ++size_;
  return true;
}

}  // namespace invar::tokenizer
