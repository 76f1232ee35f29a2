// Flags by the names that llama.cpp's programs and older ones of vLLM have for what Invar has under
// another name.
#pragma once

#include <string>
#include <vector>

namespace invar::cli {

// Gives the words of a call of serve, chat or generate the names that these know. A word that is
// dropped, such as the -m before a model, leaves its value.
void rename_llama_flags(std::vector<std::string>& words);

}  // namespace invar::cli
