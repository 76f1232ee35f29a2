// The storage type of a matrix that is put together from parts of tensors.
#pragma once

#include <vector>

#include "model/arithmetic.h"
#include "model/matrix_packer.h"

namespace invar {

class StoredTypes {
 public:
  // `is_host`: products read the host's memory. The source outlives it.
  StoredTypes(const TensorSource& source, const Arithmetic& arithmetic, bool is_host)
      : source_(source), arithmetic_(arithmetic), is_host_(is_host) {}

  bool are_quantised(const std::vector<PackedPart>& parts) const;
  void expect_multiplied_blocks(const PackedPart& part) const;
  DType type_of(const std::vector<PackedPart>& parts) const;

 private:
  void expect_whole_blocks(const PackedPart& part, DType type) const;

  const TensorSource& source_;
  const Arithmetic& arithmetic_;
  bool is_host_;
};

}  // namespace invar
