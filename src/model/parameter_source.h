// Parameters in one array of bf16 as a source of tensors: what a trainer loads into its weights and
// writes to its checkpoints.
#pragma once

#include <map>
#include <span>

#include "model/parameters.h"
#include "weights/source_bases.h"

namespace invar {

struct ParameterEntry {
  TensorInfo info;
  const bf16_t* data;
};

class ParameterSource : public ListedTensors<ParameterEntry> {
 public:
  // `weights` has the layout's order and must stay where it is.
  ParameterSource(const ParameterLayout& layout, const bf16_t* weights);
  // The same of tensors that are no decoder's.
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    int64_t offset;  // in `weights`
  };
  ParameterSource(std::span<const Tensor> tensors, const bf16_t* weights);

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  std::string where(std::string_view name) const override;

 private:
  void add(const std::string& name, std::vector<int64_t> shape, const bf16_t* data);
};

}  // namespace invar
