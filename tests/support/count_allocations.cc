#include "support/count_allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

std::atomic<int64_t> count{0};

void add_one() {
  count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define INVAR_OWN_MALLOC  // the sanitizer's
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INVAR_OWN_MALLOC
#endif

// operator new takes its memory from malloc too, so that one slot sees what C++ and C take.
#ifdef INVAR_OWN_MALLOC
extern "C" void __sanitizer_malloc_hook(const volatile void*, size_t) {
  add_one();
}
#else
extern "C" {

// glibc's own, under the names that it keeps for this.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  add_one();
  return __libc_malloc(size);
}
void* calloc(size_t number, size_t size) {
  add_one();
  return __libc_calloc(number, size);
}
void* realloc(void* p, size_t size) {
  add_one();
  return __libc_realloc(p, size);
}
void* memalign(size_t alignment, size_t size) {
  add_one();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}
int posix_memalign(void** p, size_t alignment, size_t size) {
  *p = memalign(alignment, size);
  return *p ? 0 : ENOMEM;
}
}
#endif

namespace invar {

int64_t allocation_count() {
  return count.load(std::memory_order_relaxed);
}

}  // namespace invar
