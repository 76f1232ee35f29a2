// Weights that a caller has in memory, by name, over those that the model was loaded with.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weights/tensor_source.h"

namespace invar {

struct UpdatedTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};
using UpdatedTensors = std::map<std::string, UpdatedTensor, std::less<>>;

class UpdatedWeights final : public TensorSource {
 public:
  // Both outlive it.
  UpdatedWeights(const TensorSource& loaded, const UpdatedTensors& updated)
      : loaded_(loaded), updated_(updated) {}

  const std::vector<std::string>& names() const override { return loaded_.names(); }
  bool has(std::string_view name) const override { return loaded_.has(name); }
  const TensorInfo& info(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  std::string where(std::string_view name) const override;

 private:
  const TensorSource& loaded_;
  const UpdatedTensors& updated_;
};

}  // namespace invar
