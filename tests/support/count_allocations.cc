#include "support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> count{0};

}  // namespace

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define INVAR_THREAD_SANITIZER
#endif
#endif

#ifdef INVAR_THREAD_SANITIZER
// clang's runtime has operators of its own, which call this.
extern "C" void __sanitizer_malloc_hook(const volatile void*, size_t) {
  count.fetch_add(1, std::memory_order_relaxed);
}
#else
namespace {

void* counted(size_t size, size_t alignment) {
  count.fetch_add(1, std::memory_order_relaxed);
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  if (void* p = std::aligned_alloc(alignment, rounded > 0 ? rounded : alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) {
  return counted(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}
#endif

namespace invar {

int64_t allocation_count() {
  return count.load(std::memory_order_relaxed);
}

}  // namespace invar
