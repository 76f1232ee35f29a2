#include "model/parameters.h"

#include <algorithm>

namespace invar {

namespace {

constexpr int kRoles = static_cast<int>(TensorRole::head) + 1;
constexpr int64_t kGrain = 16;  // floats of a cache line

}  // namespace

ParameterLayout::ParameterLayout(const DecoderSpec& spec)
    : offsets_(static_cast<size_t>(spec.all_layers() + 1) * kRoles, -1) {
  for (TensorSpec& tensor : tensors_of(spec)) {
    if (tensor.expert <= 0)
      offsets_[(tensor.layer + 1) * kRoles + static_cast<int>(tensor.role)] = size_;
    add(std::move(tensor));
  }
  gradient_size_ = size_;
  if (!spec.tied_head) return;
  offsets_[static_cast<int>(TensorRole::head)] = size_;
  gradient_size_ += (int64_t{spec.vocab} * spec.hidden + kGrain - 1) / kGrain * kGrain;
}

ParameterLayout::ParameterLayout(const DecoderSpec& spec, std::vector<TensorSpec> tensors)
    : offsets_(static_cast<size_t>(spec.all_layers() + 1) * kRoles, -1) {
  for (TensorSpec& tensor : tensors) add(std::move(tensor));
  gradient_size_ = size_;
}

// Behind those that are there.
void ParameterLayout::add(TensorSpec tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  const int layer = tensor.layer;
  slots_.push_back({std::move(tensor), size_, count});
  if (units_.empty() || units_.back().layer != layer)
    units_.push_back({layer, slots_.size() - 1, 0, size_, 0});
  size_ += (count + kGrain - 1) / kGrain * kGrain;
  units_.back().last = slots_.size();
  units_.back().end = size_;
}

size_t ParameterLayout::unit_at(int64_t offset) const {
  const auto behind = std::ranges::upper_bound(units_, offset, {}, &Unit::begin);
  return static_cast<size_t>(behind - units_.begin()) - 1;
}

int64_t ParameterLayout::offset(TensorRole role, int layer) const {
  return offsets_[(layer + 1) * kRoles + static_cast<int>(role)];
}

}  // namespace invar
