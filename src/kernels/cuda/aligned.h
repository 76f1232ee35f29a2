// Where arrays begin, which says how many bytes a kernel may read at a time.
#pragma once

#include <cstdint>

namespace invar::cuda {

// Whether arrays begin at multiples of `bytes`. Null ones do, since nobody reads them.
template <typename... Pointers>
bool are_aligned(uintptr_t bytes, Pointers... arrays) {
  return (... && (reinterpret_cast<uintptr_t>(arrays) % bytes == 0));
}

}  // namespace invar::cuda
