// Counts every heap allocation of a test program, to show that a warm step makes none.
#pragma once

#include <cstdint>

namespace invar {

// Calls of operator new so far, on all threads. Linking test_allocations replaces operator new.
int64_t allocation_count();

}  // namespace invar
