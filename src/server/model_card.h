// Facts of a model that clients are shown beside its names: nothing that an answer depends on.
#pragma once

#include <cstdint>
#include <string>

namespace invar::server {

struct ModelCard {
  std::string family;   // "qwen3"
  std::string format;   // of its files: "safetensors", "gguf"
  std::string weights;  // the type of most of its weights: "bf16", "q4_k"
  int64_t parameters = 0, bytes = 0;
  int32_t layers = 0, hidden = 0, heads = 0, kv_heads = 0;
};

}  // namespace invar::server
