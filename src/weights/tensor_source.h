// Where the weights of a model come from: named tensors that are read in parts, from any thread.
// Behind it stand files (hf_directory.h) or a random generator (dummy_source.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "numerics/dtype.h"

namespace invar {

struct TensorInfo {
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;  // outermost first; empty for a single number

  int64_t elements() const;
  // Elements of one row: all that has one index of the first dimension. A vector has rows of one
  // element.
  int64_t row_elements() const;

  bool operator==(const TensorInfo&) const = default;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Every tensor, sorted by the bytes of its name.
  virtual const std::vector<std::string>& names() const = 0;
  virtual bool has(std::string_view name) const = 0;
  // Throws Error when there is no such tensor or its elements have no storage type of weights.
  virtual const TensorInfo& info(std::string_view name) const = 0;

  // Elements [first, first + count) in row-major order, whole blocks. `as` is the tensor's own type
  // (as stored) or f32, both exact, or bf16, to which f16 and f32 are rounded (f32_to_bf16). Blocks
  // stand for bf16 (numerics 0.1). `out` needs no alignment. Safe from several threads. Throws
  // Error when a file cannot be read, for instance since it has become shorter.
  virtual void read(std::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const = 0;
  void read_rows(std::string_view name, int64_t first_row, int64_t rows, DType as, void* out) const;

  // The scale of each row of a matrix of i8. Throws Error where the source has none: integers alone
  // stand for nothing.
  virtual void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                               float* out) const;
  // For a source over weights that are in use: whether these have the tensor already, so that
  // nothing is read or written of it.
  virtual bool stays(std::string_view) const { return false; }
  // The tensor's elements in the memory of the GPU that takes them; null: it is read.
  virtual const std::byte* on_gpu(std::string_view) const { return nullptr; }
  // Whether tensors have the names of GGUF files, and not those of Hugging Face's.
  virtual bool has_gguf_names() const { return false; }

  // The tensors as they are stored, where these are made of others: what digests are of.
  virtual const TensorSource& as_stored() const { return *this; }

  // The tensor as error messages name it: file and quoted name.
  virtual std::string where(std::string_view name) const = 0;
};

// Exact conversions, f32 or f16 to bf16 by rounding, and whole blocks to the bf16 that they stand
// for, or that as f32. Neither side needs alignment.
void convert_elements(const void* from, DType from_type, int64_t count, DType to_type, void* to);

// Index of the first NaN or infinity among `count` elements, or -1; integers are finite. `data`
// needs no alignment.
int64_t first_non_finite(const void* data, DType type, int64_t count);

// Throws Error naming the tensor and the place of its first NaN or infinity, if it has one. Reads
// the whole tensor.
void check_finite(const TensorSource& source, std::string_view name, ThreadPool& pool);
// Throws the error of check_finite, for callers that look at values while packing them.
[[noreturn]] void fail_non_finite(const TensorSource& source, std::string_view name, int64_t index);

}  // namespace invar
