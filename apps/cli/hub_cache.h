// Directories of the hub's cache on the command line.
#pragma once

#include <string>

namespace invar::cli {

// A directory of the hub's cache ("models--OWNER--NAME") stands for its snapshot. As a validator of
// CLI11: changes the word, and returns what is wrong with it.
std::string open_hub_cache(std::string& word);

}  // namespace invar::cli
