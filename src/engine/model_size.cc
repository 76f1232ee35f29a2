#include "engine/model_size.h"

#include <algorithm>

namespace invar {

DType ModelSize::most() const {
  const auto found =
      std::ranges::max_element(stored, {}, [](const auto& one) { return one.second; });
  return found == stored.end() ? DType::bf16 : found->first;
}

ModelSize size_of(const TensorSource& source) {
  ModelSize size;
  for (const std::string& name : source.names()) {
    const TensorInfo& info = source.info(name);
    const int64_t elements = info.elements();
    size.parameters += elements;
    const bool is_vector = info.shape.size() == 1;  // norms and biases are f32 in memory
    size.bytes += bytes_of(is_vector ? DType::f32 : info.dtype, elements);
    size.stored[info.dtype] += elements;
  }
  return size;
}

}  // namespace invar
