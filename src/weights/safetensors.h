// One safetensors file: 8 bytes little-endian header size, a JSON header, then the tensors' bytes.
// https://huggingface.co/docs/safetensors - every rule of the format is checked: what the reference
// reader refuses is refused here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"

namespace invar {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  // as written: "BF16", "F16", "F32", "I64", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // its bytes in the file; row-major, little-endian, any alignment

  bool operator==(const SafetensorsTensor&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;
};

constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Reads the header of a whole file. Throws Error unless the header fits, is a JSON object, every
// tensor has a known dtype, a shape and a byte range of just the size that they say, and the ranges
// cover the rest of the file once, without gaps. `where` names the file in errors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view where);

class SafetensorsFile {
 public:
  // Maps the file and checks it as above.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const SafetensorsHeader& header() const { return header_; }
  std::span<const std::byte> bytes_of(const SafetensorsTensor& tensor) const {
    return file_.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
  }
  // Lets the kernel take back the pages of one tensor.
  void drop(const SafetensorsTensor& tensor) const { file_.drop(bytes_of(tensor)); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace invar
