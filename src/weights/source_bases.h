// Sources of tensors that say alike which tensors there are: those over another source, and those
// of a list.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/tensor_source.h"

namespace invar {

// Its tensors are another source's where it says nothing else.
class SourceOver : public TensorSource {
 public:
  const std::vector<std::string>& names() const override { return base_.names(); }
  bool has(std::string_view name) const override { return base_.has(name); }
  const TensorInfo& info(std::string_view name) const override { return base_.info(name); }
  std::string where(std::string_view name) const override { return base_.where(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    base_.read(name, first, count, as, out);
  }

 private:
  const std::unique_ptr<TensorSource> owned_;  // or null

 protected:
  explicit SourceOver(const TensorSource& base) : base_(base) {}
  explicit SourceOver(std::unique_ptr<TensorSource> base)
      : owned_(std::move(base)), base_(*owned_) {}

  const TensorSource& base_;
};

// An Entry has a TensorInfo `info`.
template <typename Entry>
class ListedTensors : public TensorSource {
 public:
  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return entries_.contains(name); }
  const TensorInfo& info(std::string_view name) const override { return find(name).info; }

 protected:
  // Throws Error when there is none.
  const Entry& find(std::string_view name) const {
    const auto entry = entries_.find(name);
    if (entry == entries_.end()) fail("{} is missing", where(name));
    return entry->second;
  }
  // Once all entries are there.
  void list_names() {
    for (const auto& [name, entry] : entries_) names_.push_back(name);
  }

  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> names_;  // sorted
};

}  // namespace invar
