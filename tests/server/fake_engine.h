#pragma once

#include <cstdint>

namespace invar::server {

constexpr uint64_t kPoison = 666;  // a request of this seed kills an engine of mode "poison"

constexpr int32_t fake_token(uint64_t seed, int32_t index) {
  const uint64_t mixed = (seed * 1'000'003 + static_cast<uint64_t>(index)) * 0x9e3779b97f4a7c15;
  return static_cast<int32_t>(mixed >> 40);
}

}  // namespace invar::server
