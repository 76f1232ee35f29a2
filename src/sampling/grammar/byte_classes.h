// Bytes that a language nowhere tells apart have one class.
#pragma once

#include <array>
#include <cstdint>

#include "sampling/grammar/language.h"

namespace invar::grammar {

struct ByteClasses {
  // The classes of all sets, texts and tables of the language.
  explicit ByteClasses(const Language& language);

  std::array<uint8_t, 256> class_of{};
  std::array<uint8_t, 256> first{};  // of each class
  int32_t count = 1;
};

}  // namespace invar::grammar
