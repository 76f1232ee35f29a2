// Tensors as a file has them, whatever their elements are: for those who make others of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace invar {

struct RawTensor {
  std::string dtype;  // as safetensors names it
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;  // none where they are not asked for
};

// Gives tensors of files as they are stored; a source of files may be one, too (open_checkpoint).
class RawTensors {
 public:
  virtual ~RawTensors() = default;
  // Throws Error when there is no such tensor or its file cannot be read.
  virtual RawTensor read_raw(std::string_view name, bool with_bytes = true) const = 0;
};

}  // namespace invar
