// Memory of a GPU that can be given back and had again at its addresses: pages that are mapped into
// reserved ranges (CUDA's virtual memory management).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <mutex>

namespace invar {

class VacatableMemory {
 public:
  explicit VacatableMemory(int ordinal);

  // Whether an array is worth whole pages; a smaller one is not given back.
  static bool is_large(size_t bytes) { return bytes >= (size_t{1} << 20); }
  // A range with pages, which are not cleared; null where there are not enough of them. Other
  // failures throw Error.
  void* allocate(size_t bytes);
  void release(void* address);
  // The pages go; nothing where they have gone.
  void vacate(void* address);
  // Others come, not cleared. False where there are not enough; true, too, where they are there.
  bool occupy(void* address);

 private:
  struct Range {
    size_t bytes = 0;
    CUmemGenericAllocationHandle pages = 0;
    bool is_mapped = false;
  };
  bool map(void* address, Range& range) const;

  const CUmemAllocationProp properties_;
  std::mutex mutex_;
  std::map<void*, Range> ranges_;
};

}  // namespace invar
