#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"
#include "device/device.h"
#include "device/vacatable.h"

namespace invar {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class HostEvent final : public Event {
 public:
  void wait() override {}
};

// Does everything at once.
class HostStream final : public Stream {
 public:
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t width,
                 size_t rows) override {
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_stride,
                  static_cast<const char*>(from) + row * from_stride, width);
  }
  void clear(void* to, size_t bytes) override { std::memset(to, 0, bytes); }
  void wait() override {}
  void record(Event&) override {}
  void wait_for(const Event&) override {}
  std::unique_ptr<Graph> record_graph(FunctionRef<void()>) override { return nullptr; }
  void launch(Graph&) override {}
};

class HostDevice final : public Device, public VacatesMemory {
 public:
  void* allocate(size_t bytes, const char* what) override {
    if (bytes > available_bytes())
      fail("not enough memory for {}: {} MiB are needed, {} MiB are available", what, bytes >> 20,
           available_bytes() >> 20);
    // Huge pages at a huge-page boundary: reserve one more and give the ends back.
    const size_t size = mapped_size(bytes);
    const size_t extra = size >= kHugePage ? kHugePage : 0;
    void* address = ::mmap(nullptr, size + extra, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
      fail("not enough memory for {}: {} MiB could not be mapped", what, bytes >> 20);
    if (!extra) return address;
    char* begin = static_cast<char*>(address);
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    if (skip) ::munmap(begin, skip);
    if (extra > skip) ::munmap(begin + skip + size, extra - skip);
    ::madvise(begin + skip, size, MADV_HUGEPAGE);
    return begin + skip;
  }

  void release(void* address, size_t bytes) override { ::munmap(address, mapped_size(bytes)); }
  // All memory is mapped for itself: its pages go, and come back with the next touch.
  void* allocate_vacatable(size_t bytes, const char* what) override {
    return allocate(bytes, what);
  }
  void release_vacatable(void* address, size_t bytes) override { release(address, bytes); }
  void vacate(void* address, size_t bytes) override {
    if (::madvise(address, mapped_size(bytes), MADV_DONTNEED) != 0)
      fail("giving {} MiB of memory back failed: {}", bytes >> 20, std::strerror(errno));
  }
  void occupy(void*, size_t bytes, const char* what) override {
    if (bytes > available_bytes())
      fail("not enough memory for {}: {} MiB are needed, {} MiB are available", what, bytes >> 20,
           available_bytes() >> 20);
  }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void* allocate_pinned(size_t bytes, const char* what) override { return allocate(bytes, what); }
  void release_pinned(void* address, size_t bytes) override { release(address, bytes); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  bool is_host() const override { return true; }

  size_t available_bytes() const override {
    std::ifstream info("/proc/meminfo");
    for (std::string key, unit; info >> key;) {
      size_t kib = 0;
      info >> kib;
      if (key == "MemAvailable:") return kib << 10;
      std::getline(info, unit);
    }
    return size_t{1} << 40;  // no /proc: let the kernel decide
  }

 private:
  // Small arrays take whole small pages, large ones whole huge pages. Those between end in small
  // ones: a rank's part of a matrix may be a few megabytes, and there are hundreds of them.
  static size_t mapped_size(size_t bytes) {
    const auto whole = [bytes](size_t unit) {
      return (bytes ? bytes + unit - 1 : unit) / unit * unit;
    };
    const size_t huge = whole(kHugePage);
    return huge - bytes <= bytes / 32 ? huge : whole(4096);
  }
};

}  // namespace

std::unique_ptr<Device> make_host_device() {
  return std::make_unique<HostDevice>();
}

}  // namespace invar
