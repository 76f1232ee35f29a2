#include "model/parameter_source.h"

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"

namespace invar {

ParameterSource::ParameterSource(const ParameterLayout& layout, const bf16_t* weights) {
  for (const ParameterLayout::Slot& slot : layout.slots())
    add(slot.tensor.name, slot.tensor.shape, weights + slot.offset);
  list_names();
}

ParameterSource::ParameterSource(std::span<const Tensor> tensors, const bf16_t* weights) {
  for (const Tensor& tensor : tensors) add(tensor.name, tensor.shape, weights + tensor.offset);
  list_names();
}

void ParameterSource::add(const std::string& name, std::vector<int64_t> shape, const bf16_t* data) {
  entries_[name] = {{DType::bf16, std::move(shape)}, data};
}

void ParameterSource::read(std::string_view name, int64_t first, int64_t count, DType as,
                           void* out) const {
  const ParameterEntry& entry = find(name);
  CHECK(first >= 0 && count >= 0 && first + count <= entry.info.elements(),
        "read outside a tensor");
  convert_elements(entry.data + first, DType::bf16, count, as, out);
}

std::string ParameterSource::where(std::string_view name) const {
  return fmt::format("the trained model: tensor {}", json::quoted(name));
}

}  // namespace invar
