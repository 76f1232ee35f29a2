#include "base/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace invar {

SharedMemory::SharedMemory(size_t bytes) : size_(bytes) {
  file_ = ::memfd_create("invar", MFD_CLOEXEC);
  if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(bytes)) != 0)
    fail("the system gives no {} bytes of shared memory: {}", bytes, std::strerror(errno));
  map(file_);
}

SharedMemory SharedMemory::of_file(int file) {
  SharedMemory memory;
  struct stat status {};
  if (::fstat(file, &status) != 0) fail("expected shared memory, found: {}", std::strerror(errno));
  memory.size_ = static_cast<size_t>(status.st_size);
  memory.map(file);
  return memory;
}

void SharedMemory::map(int file) {
  void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED)
    fail("{} bytes of shared memory cannot be mapped: {}", size_, std::strerror(errno));
  data_ = static_cast<std::byte*>(at);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_) ::munmap(data_, size_);
  if (file_ >= 0) ::close(file_);
}

}  // namespace invar
