// A target with a fault, which a text that no seed has brings out: a bounded run must find it.
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.find("1e999") != text.npos) std::exit(1);
  return 0;
}
