// Memory for what the parts of a layer compute on their way, handed out array by array from one
// piece. Without a piece it only counts.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/matrix.h"
#include "model/arithmetic.h"

namespace invar {

class ActivationMemory {
 public:
  struct Options {
    const Arithmetic& arithmetic;
    WeightLayout layout;
    int64_t rows;
    // For a backward, which needs more of them; and [T][D], where the residual stream is kept that
    // the layer begins with.
    bool is_kept = false;
    float* stream = nullptr;
  };
  ActivationMemory(const Options& options, std::byte* memory)
      : type_(options.arithmetic.activations()),
        heads_(options.arithmetic.heads()),
        layout_(options.layout),
        rows_(options.rows),
        is_kept_(options.is_kept),
        stream_(options.stream),
        memory_(memory) {}

  bool is_kept() const { return is_kept_; }
  // [T][D], where a part keeps the residual stream that it reads; null where nothing is kept. The
  // first of a layer gets the layer's own.
  float* stream(int64_t width) {
    if (!is_kept_) return nullptr;
    return has_stream_ ? array<float>(width) : (has_stream_ = true, stream_);
  }
  // Hands a part's result on to the one behind it, in place of the normed stream.
  void hand_on(const Activation& x) { handed_on_ = x; }
  const std::optional<Activation>& handed_on() const { return handed_on_; }
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
  // An operand of a matrix product, so many times for each row.
  Activation activation(int64_t width, int64_t times = 1) {
    const int64_t stride = activation_stride(width, layout_);
    return {take(rows_ * times * stride * size_of(type_)), type_, stride};
  }
  // Queries: [T][heads][round_up(E, 32)], f32 where the cache is.
  bf16_t* heads(int64_t count, int64_t head_dim) {
    return reinterpret_cast<bf16_t*>(
        take(rows_ * count * round_up(head_dim, kLeafPad) * size_of(heads_)));
  }
  // Bytes that were taken.
  int64_t bytes() const { return bytes_; }
  // Arrays that are taken next may lie where all that were taken so far do, but for the first
  // `kept` bytes.
  void begin_part(int64_t kept) { most_ = std::max(most_, bytes_), bytes_ = kept; }
  int64_t most_bytes() const { return std::max(most_, bytes_); }

 private:
  std::byte* take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    std::byte* address = memory_ ? memory_ + bytes_ : nullptr;
    bytes_ += round_up(bytes, kAlignment);
    return address;
  }

  const DType type_, heads_;
  const WeightLayout layout_;
  const int64_t rows_;
  const bool is_kept_;
  float* const stream_;
  bool has_stream_ = false;
  std::optional<Activation> handed_on_;
  std::byte* const memory_;
  int64_t bytes_ = 0, most_ = 0;
};

}  // namespace invar
