// A whole GGUF file: its header, and where that stands the configuration and the tokenizer in it.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "weights/gguf_texts.h"

namespace {

// The bytes as a file, since metadata is read from one; it has no name any more when this returns.
class InMemory {
 public:
  InMemory(const uint8_t* data, size_t size) {
    char name[] = "/tmp/gguf_fuzz_XXXXXX";
    const int file = mkstemp(name);
    if (file < 0) std::abort();
    path = name;
    for (size_t at = 0; at < size;) {
      const ssize_t wrote = write(file, data + at, size - at);
      if (wrote <= 0) std::abort();
      at += static_cast<size_t>(wrote);
    }
    close(file);
  }
  ~InMemory() { unlink(path.c_str()); }
  std::string path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [&](int64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), data + offset, out.size());
  };
  try {
    invar::read_gguf_header(read, static_cast<int64_t>(size), "fuzz");
    const InMemory file(data, size);
    const auto gguf = std::make_shared<invar::GgufFile>(file.path);
    invar::open_gguf_tensors(gguf)->names();
    try {
      invar::gguf_tokenizer_texts(*gguf);
    } catch (const invar::Error&) {
    }
    invar::gguf_generation_config(*gguf);
    invar::gguf_config(*gguf);
  } catch (const invar::Error&) {
  }
  return 0;
}
