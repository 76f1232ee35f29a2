// The tensors of a layout whose elements, in bf16, somebody has: as a source of a model's weights.
#pragma once

#include <map>

#include "model/parameters.h"
#include "weights/source_bases.h"

namespace invar {

struct LayoutEntry {
  TensorInfo info;
  int64_t offset = 0;
};

class LayoutSource : public ListedTensors<LayoutEntry> {
 public:
  explicit LayoutSource(const ParameterLayout& layout);

  std::string where(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;

 protected:
  // Elements [offset, offset + count) of the layout.
  virtual void read_elements(int64_t offset, int64_t count, DType as, void* out) const = 0;
};

}  // namespace invar
