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

#include "base/input_file.h"

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

// Bytes before the tensors', from the first 8 (or all) of a file of `file_size` bytes. Throws Error
// unless they fit into it. `where` names the file in errors.
int64_t safetensors_header_end(std::span<const std::byte> begin, int64_t file_size,
                               std::string_view where);

// Reads the header from the file's first bytes, those before the tensors' at least. Throws Error
// unless the header fits, is a JSON object, every tensor has a known dtype, a shape and a byte
// range of just the size that they say, and the ranges cover the rest of the file once, without
// gaps.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> begin, int64_t file_size,
                                           std::string_view where);

class SafetensorsFile {
 public:
  // Opens the file and checks it as above.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const SafetensorsHeader& header() const { return header_; }
  // Fills `out` with the bytes from `offset` of one tensor. Throws Error when the file has become
  // shorter.
  void read(const SafetensorsTensor& tensor, int64_t offset, std::span<std::byte> out) const {
    file_.read_at(tensor.begin + offset, out);
  }

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

}  // namespace invar
