#include "train/layout_source.h"

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"

namespace invar {

LayoutSource::LayoutSource(const ParameterLayout& layout) {
  for (const ParameterLayout::Slot& slot : layout.slots())
    entries_[slot.tensor.name] = {{DType::bf16, slot.tensor.shape}, slot.offset};
  list_names();
}

std::string LayoutSource::where(std::string_view name) const {
  return fmt::format("the trained model: tensor {}", json::quoted(name));
}

void LayoutSource::read(std::string_view name, int64_t first, int64_t count, DType as,
                        void* out) const {
  const LayoutEntry& entry = find(name);
  CHECK(first >= 0 && count >= 0 && first + count <= entry.info.elements(),
        "read outside a tensor");
  read_elements(entry.offset + first, count, as, out);
}

}  // namespace invar
