#include "base/error.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    invar::parse_safetensors_header({reinterpret_cast<const std::byte*>(data), size},
                                    static_cast<int64_t>(size), "fuzz");
  } catch (const invar::Error&) {
  }
  return 0;
}
