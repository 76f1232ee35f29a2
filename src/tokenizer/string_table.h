// Numbers by string, for large constant sets: one array, no allocation per entry.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace invar::tokenizer {

// Open addressing, at most half full. The strings are not copied and must stay where they are.
class StringTable {
 public:
  explicit StringTable(size_t expected = 0) { resize(expected); }

  // False, and nothing changes, when the string is there already.
  bool insert(std::string_view key, int32_t value);

  // -1 when the string is not there.
  int32_t find(std::string_view key) const {
    const Slot& slot = slots_[place_of(key, hash_of(key))];
    return slot.key.data() ? slot.value : -1;
  }

 private:
  struct Slot {
    std::string_view key;  // data() is null in an empty slot
    uint32_t hash = 0;
    int32_t value = -1;
  };

  static uint32_t hash_of(std::string_view key) {
    return static_cast<uint32_t>(std::hash<std::string_view>()(key));
  }
  // The place of the string, or of the empty slot where it would go.
  size_t place_of(std::string_view key, uint32_t hash) const {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].key.data() && (slots_[at].hash != hash || slots_[at].key != key))
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void resize(size_t expected);

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace invar::tokenizer
