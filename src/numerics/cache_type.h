// The KV cache's form of keys and values in 8 bits (numerics 4.2): the executable definition.
#pragma once

#include "numerics/e4m3.h"

namespace invar {

// f32: of the weight mode exact alone.
enum class CacheType : uint8_t { bf16, int8, fp8_e4m3, f32 };

// As --kv-cache-dtype has it.
constexpr std::string_view name_of(CacheType type) {
  return type == CacheType::int8 ? "int8" : type == CacheType::fp8_e4m3 ? "fp8_e4m3" : "bf16";
}

}  // namespace invar
