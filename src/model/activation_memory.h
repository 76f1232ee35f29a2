// Memory for what the parts of a layer compute on their way, handed out array by array from one
// piece. Without a piece it only counts.
#pragma once

#include "model/decoder.h"
#include "model/layer_activations.h"

namespace invar {

class ActivationMemory {
 public:
  // `is_kept`: for a backward, which needs more of them.
  ActivationMemory(const Decoder& decoder, int64_t rows, bool is_kept, std::byte* memory = nullptr)
      : type_(decoder.arithmetic.activations()),
        layout_(decoder.kernels.weights),
        rows_(rows),
        is_kept_(is_kept),
        memory_(memory) {}

  bool is_kept() const { return is_kept_; }
  // [T][count]
  template <typename T>
  T* array(int64_t count) {
    return reinterpret_cast<T*>(take(rows_ * count * static_cast<int64_t>(sizeof(T))));
  }
  // [count], however many rows there are.
  template <typename T>
  T* fixed(int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<int64_t>(sizeof(T))));
  }
  // What enters a matrix product, so many times for each row.
  Activation activation(int64_t width, int64_t times = 1) {
    const int64_t stride = activation_stride(width, layout_);
    return {take(rows_ * times * stride * size_of(type_)), type_, stride};
  }
  // Bytes that were taken.
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    std::byte* address = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ += round_up(bytes, kAlignment);
    return address;
  }

  const DType type_;
  const WeightLayout layout_;
  const int64_t rows_;
  const bool is_kept_;
  std::byte* const memory_;
  int64_t bytes_ = 0;
};

}  // namespace invar
