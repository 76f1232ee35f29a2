// NCCL's unique id as vLLM puts it into a store: a ctypes structure that Python has pickled.
#pragma once

#include <string_view>

#include "collectives/nccl_library.h"

namespace invar {

// Reads the one form that pickle gives such a structure, of whatever module; it runs nothing.
// Throws Error for any other.
Nccl::Id unpickled_id(std::string_view pickle);

}  // namespace invar
