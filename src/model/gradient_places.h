// Where the chains of a layout's gradients lie in memory: each at its own place, or, where a
// layer's gradient is taken away as soon as it is whole, those of all layers in the same one.
#pragma once

#include <algorithm>

#include "model/parameters.h"

namespace invar {

class GradientPlaces {
 public:
  // `chains` elements stand behind those of the tensors. `in_turn`: layers share a place.
  GradientPlaces(const ParameterLayout& layout, int64_t chains, bool in_turn)
      : layout_(layout), in_turn_(in_turn) {
    if (!in_turn) {
      size_ = layout.size() + chains;
      return;
    }
    for (const ParameterLayout::Unit& unit : layout.units())
      if (unit.layer >= 0) size_ = std::max(size_, unit.count());
    for (const ParameterLayout::Unit& unit : layout.units()) {
      places_.push_back(unit.layer >= 0 ? 0 : size_);
      if (unit.layer < 0) size_ += unit.count();
    }
    chains_ = size_;
    size_ += chains;
  }

  bool in_turn() const { return in_turn_; }
  // Elements of all.
  int64_t size() const { return size_; }
  // The place of an element of the layout, or of a chain behind it.
  int64_t place(int64_t offset) const {
    if (!in_turn_) return offset;
    if (offset >= layout_.size()) return chains_ + offset - layout_.size();
    const size_t unit = layout_.unit_at(offset);
    return places_[unit] + offset - layout_.units()[unit].begin;
  }

 private:
  const ParameterLayout& layout_;
  const bool in_turn_;
  int64_t size_ = 0, chains_ = 0;
  std::vector<int64_t> places_;  // of units
};

}  // namespace invar
