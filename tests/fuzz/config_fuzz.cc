#include "base/error.h"
#include "model/families/families.h"
#include "model/families/tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const invar::json::Value config = invar::json::parse(text, "fuzz");
    const invar::DecoderSpec spec = invar::parse_model_config(config, config, "fuzz").spec;
    if (spec.layers < 64) invar::tensors_of(spec);
  } catch (const invar::Error&) {
  }
  return 0;
}
