// Low-rank adapters in GGUF files, as llama.cpp reads them (its convert_lora_to_gguf writes
// them): general.type is "adapter", adapter.type "lora", and a tensor NAME.weight of the model has
// NAME.weight.lora_a and NAME.weight.lora_b.
#pragma once

#include <string>

#include "weights/lora_adapter.h"

namespace invar {

// Rows of B stand as the rows of the model's tensor do in such a file. Throws Error.
LoraAdapter open_gguf_adapter(const std::string& path);

}  // namespace invar
