// How the matrices of quantised Hugging Face checkpoints stand in their tensors, by the formats'
// written rules: which integers or f8 numbers, which scale, which zero point an element has. Each
// stands for bf16((f32)(q - zero) * scale), one product.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "weights/raw_tensors.h"
#include "weights/tensor_source.h"

namespace invar {

// The quantization_config of a config.json for such checkpoints.
struct PackedFormat {
  enum class Kind {
    fp8,      // e4m3 in `weight`
    integer,  // compressed-tensors' int8 in `weight`
    packed,   // compressed-tensors' integers in words, along a row
    gptq,     // in words, along a column
    awq,      // in words, along a row of the transpose
    nf4       // bitsandbytes': two codes of a table to a byte, rows behind each other
  };
  Kind kind = Kind::fp8;
  int bits = 8;
  bool is_symmetric = true;
  bool has_order = false;              // the columns' groups stand in a tensor of their own
  bool is_zero_exact = true;           // GPTQ: a stored zero point is itself, not one less
  int64_t group = 0;                   // elements of a row that share a scale; 0: all of them
  int64_t block_rows = 0;              // fp8: rows that share it; 0: none do
  const char* scale = "weight_scale";  // the tensor's name behind the module's
};

// Throws Error for what is none of them; `where` names the file.
PackedFormat read_packed_format(const json::Value& quantization, const std::string& where);

// One matrix: its tensors, read as they are.
class PackedMatrix {
 public:
  // Throws Error unless the tensors of the module are there and fit together.
  PackedMatrix(const PackedFormat& format, const TensorSource& source, const RawTensors& raw,
               const std::string& module);

  // Rows and columns, by the tensor of the elements, which must be a matrix, or what stands beside
  // it.
  static std::vector<int64_t> shape_of(const PackedFormat& format, const TensorSource& source,
                                       const RawTensors& raw, const std::string& module);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Elements of a row in f32, before the rounding to bf16.
  void row(int64_t row, int64_t first, int64_t count, float* out) const;
  // `count` blocks of a row from block `first` on, as a storage type has them: e4m3, e4m3_row or
  // that of block_type(). Throws Error for NaN of e4m3.
  void blocks(DType type, int64_t row, int64_t first, int64_t count, uint8_t* out) const;
  // Whether 128 columns of a row, and no fewer, share a scale of e4m3.
  static bool has_fp8_blocks(const PackedFormat& format, int64_t columns);
  // Whether all columns do.
  static bool has_fp8_rows(const PackedFormat& format, int64_t columns);
  // The type of blocks that hold the very elements: q8_0 or q4_0 for integers of 8 or 4 bits, q5_0
  // for those of 4 bits with zero points, where the scales are f16 numbers, each of whole blocks of
  // a row; bf16 for others.
  static DType block_type(const PackedFormat& format, const TensorSource& source,
                          const RawTensors& raw, const std::string& module, int64_t columns);

  // The name of the tensor that holds a module's elements, behind it.
  static const char* elements_name(const PackedFormat& format);
  // Names of all that a module has.
  static const std::vector<const char*>& names(const PackedFormat& format);

 private:
  const PackedFormat format_;
  int64_t rows_ = 0, columns_ = 0;
  RawTensor elements_, scales_, zeros_, order_;
  bool has_zeros_ = false, has_order_ = false;
  int64_t groups_ = 1;

  // Reads nf4: the values of codes, and the scales, f32.
  void read_nf4(const TensorSource& source, const RawTensors& raw, const std::string& module);
  void nf4_row(int64_t row, int64_t first, int64_t count, float* out) const;
  std::vector<float> table_, factors_;
  int64_t block_ = 0;

  int element(int64_t row, int64_t column) const;
  // As many in a row.
  void elements(int64_t row, int64_t column, int64_t count, int* out) const;
  int zero(int64_t row, int64_t group) const;
  int64_t group_of(int64_t column) const;
  // How many columns from this one on, at most `most`, have its group.
  int64_t columns_together(int64_t column, int64_t most) const;
  float scale(int64_t row, int64_t group) const;
  void fp8_block(int64_t row, int64_t column, uint8_t* out) const;
  void integer_block(DType type, int64_t row, int64_t column, uint8_t* out) const;
  void check_shapes(const TensorSource& source, const std::string& module);
  void check_order(const TensorSource& source, const std::string& name) const;
  int stored_zero(int64_t row, int64_t group) const;
};

// Throws Error for a quantization_config that is neither one of them nor W8A8 (int8_source.h).
void check_quantization(const json::Value& quantization, const std::string& where);
// How matrices of a quantised checkpoint are seen: W8A8 as integers, those of block_type() in such
// blocks and others as bf16; all as bf16; or those of e4m3 as these numbers (numerics 2.2), or
// where their rows have one scale each, as such (numerics 2.5).
enum class Quantised { as_stored, as_twin, as_fp8, as_fp8_row };
// The tensors of a checkpoint with such a configuration: NAME.weight for each module's, read
// element by element from its tensors, which are kept for the last few modules. Other matrices are
// rounded to bf16.
std::unique_ptr<TensorSource> quantised_tensors(std::unique_ptr<TensorSource> stored,
                                                const json::Value& quantization, Quantised how);

}  // namespace invar
