// Counts every heap allocation of a test program, to show that a warm step makes none.
#pragma once

#include <cstdint>

namespace invar {

// Calls of malloc and its kin so far, on all threads, those of operator new and of libraries too.
// Linking test_allocations replaces malloc.
int64_t allocation_count();

}  // namespace invar
