// The tensors of a layout whose elements, in bf16, somebody has: as a source of a model's weights.
#pragma once

#include <map>

#include "model/parameters.h"

namespace invar {

class LayoutSource : public TensorSource {
 public:
  explicit LayoutSource(const ParameterLayout& layout);

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return entries_.contains(name); }
  const TensorInfo& info(std::string_view name) const override { return find(name).info; }
  std::string where(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;

 protected:
  // Elements [offset, offset + count) of the layout.
  virtual void read_elements(int64_t offset, int64_t count, DType as, void* out) const = 0;

 private:
  struct Entry {
    TensorInfo info;
    int64_t offset = 0;
  };
  const Entry& find(std::string_view name) const;

  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> names_;
};

}  // namespace invar
