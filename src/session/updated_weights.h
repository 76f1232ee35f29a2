// Weights that a caller has in memory, by name, over those that the model was loaded with.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weights/source_bases.h"

namespace invar {

struct UpdatedTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};
using UpdatedTensors = std::map<std::string, UpdatedTensor, std::less<>>;

class UpdatedWeights final : public SourceOver {
 public:
  // Both outlive it.
  UpdatedWeights(const TensorSource& loaded, const UpdatedTensors& updated)
      : SourceOver(loaded), updated_(updated) {}

  const TensorInfo& info(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    base_.read_row_scales(name, first_row, rows, out);
  }
  std::string where(std::string_view name) const override;

 private:
  const UpdatedTensors& updated_;
};

}  // namespace invar
