// The names that --speculative-config takes as its "method".
#pragma once

#include <string>

namespace invar {

// Separated by commas, for messages and help.
std::string speculation_method_names();

}  // namespace invar
