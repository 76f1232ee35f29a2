// Puts matrices together in a device's memory from parts of tensors, and reads parts back.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/pack.h"
#include "model/weight_upload.h"
#include "weights/tensor_source.h"

namespace invar {

// Rows [first_row, first_row + rows) and columns [first_column, first_column + columns) of a
// tensor, as outputs of a packed matrix, whose inner size is `columns`.
struct PackedPart {
  std::string tensor;
  int64_t first_row, rows, first_column, columns;
  PackPlace place;
};

class MatrixPacker {
 public:
  // The buffers are used where the host cannot write the device's memory. Everything outlives it.
  MatrixPacker(const TensorSource& source, Device& device, ThreadPool& pool,
               WeightUpload::Buffers& buffers);

  // Writes the parts that do not stay (TensorSource::stays) into a matrix whose memory is zero
  // where nothing was written. Threads of the pool work in parallel. Throws Error naming the tensor
  // that has an element that is not finite.
  void fill(const Matrix& w, const std::vector<PackedPart>& parts);
  // Reads a part back into `out`, which is its whole tensor. Throws Error for a matrix in panels or
  // of another type than the tensor's.
  void read_back(const Matrix& w, const PackedPart& part, std::byte* out) const;
  // Writes bytes of the host, which may be used again at once.
  void write(std::byte* target, const void* from, size_t bytes);
  // Returns when everything written is there.
  void wait();

 private:
  void fill_rows(const Matrix& w, const PackedPart& part);
  void fill_units(const Matrix& w, const std::vector<PackedPart>& parts);
  void send_units(const Matrix& w, const std::vector<PackedPart>& changed, bool some_stay,
                  std::byte* target);
  void pack(const PackedPart& part, const Matrix& w, std::byte* target);
  bool are_rows_as_stored(const PackedPart& part, const Matrix& w) const;
  void pack_few(const PackedPart& part, const Matrix& w, int64_t row, int64_t count,
                std::vector<std::byte>& block, std::byte* target);
  void read(const PackedPart& part, int64_t row, int64_t count, DType type, std::byte* out);
  void note_not_finite(const PackedPart& part, int64_t index);
  void fail_if_not_finite() const;
  std::vector<std::byte>& block_of(int share) { return blocks_[static_cast<size_t>(share)]; }

  static constexpr int64_t kRowsAtOnce = 16;
  struct NotFinite {
    int64_t output, index;  // where the tensor goes, and its element
    std::string tensor;
    auto operator<=>(const NotFinite&) const = default;
  };

  const TensorSource& source_;
  Device& device_;
  ThreadPool& pool_;
  std::optional<WeightUpload> upload_;          // to a device that the host cannot write
  std::vector<std::vector<std::byte>> blocks_;  // of rows that are packed, for each share
  std::mutex noting_;
  std::optional<NotFinite> not_finite_;  // of the matrix that is packed
};

}  // namespace invar
