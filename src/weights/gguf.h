// A GGUF file, version 2 or 3: metadata, then a table of tensors, then their bytes.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md - what contradicts it is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/input_file.h"
#include "base/json.h"
#include "numerics/dtype.h"
#include "weights/tensor_source.h"

namespace invar {

// How ggml stores elements: its number and name, and which of our types that is.
struct GgmlType {
  uint32_t id;
  const char* name;
  std::optional<DType> type;
  // Bytes of a block's scales that stand before its values; the others stand behind them.
  int scales_before = 0;
  // Bytes of its scales, the last ones, that only the type here has: zeros.
  int padding = 0;

  // Bytes of so many elements: whole blocks.
  int64_t bytes(int64_t elements) const;
};
// Null for a number that no type had.
const GgmlType* find_ggml_type(uint32_t id);
const GgmlType& ggml_type_of(DType type);

struct GgufTensor {
  std::string name;
  const GgmlType* stored;      // whose type is set
  std::vector<int64_t> shape;  // outermost first
  int64_t begin = 0, bytes = 0;
};

// Bounds of what a file may hold.
inline constexpr int64_t kMaxGgufKeys = 1 << 16, kMaxGgufTensors = 1 << 18, kMaxGgufName = 64,
                         kMaxGgufText = 64 << 20,
                         kMaxGgufElements = 1 << 23,  // of all arrays together
    kMaxGgufHeader = int64_t{1} << 28;

struct GgufHeader {
  std::map<std::string, json::Value, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the order of their bytes
};

// Reads the header of a file of `size` bytes, of which `read(offset, out)` gives some. Throws Error
// unless it is whole, all counts are within bounds, and every tensor has a known type, a shape that
// fits it, and bytes of its own inside the file.
using ReadBytes = FunctionRef<void(int64_t, std::span<std::byte>)>;
GgufHeader read_gguf_header(ReadBytes read, int64_t size, std::string_view where);

// Whether a model is named that stands in a GGUF file, and not a directory.
bool is_gguf(std::string_view model);

// One file, or the parts of one: NAME-00001-of-00003.gguf, of which the first is named.
class GgufFile {
 public:
  // Throws Error as above; for a part that is missing, comes twice or belongs elsewhere; and for a
  // tensor that stands in two.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return parts_[0].file.path(); }
  const auto& metadata() const { return parts_[0].header.metadata; }
  // Null where there is none.
  const json::Value* find(std::string_view key) const;

  struct Part {
    InputFile file;
    GgufHeader header;
  };
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

// Its tensors under their names there. A block's scales come before its values.
std::unique_ptr<TensorSource> open_gguf_tensors(std::shared_ptr<const GgufFile> file);

}  // namespace invar
