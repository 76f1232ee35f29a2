// Log-probabilities from the logits of a batch on its device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/training.h"
#include "model/decoder.h"

namespace invar {

class DeviceScores {
 public:
  DeviceScores(Device& device, int max_rows);

  // Scores rows of the decoder's vocabulary, which must stay where they are on its device, and a
  // token of each row. Waits for the device.
  void compute(const Decoder& decoder, const TrainingKernels& kernels, const float* logits,
               std::span<const int32_t> tokens);

  float log_probability(size_t row) const {
    return orders::LogSumExp{max_[row], log_sum_[row]}.log_probability(picked_[row]);
  }
  bool has_nan(size_t row) const { return has_nan_[row]; }
  int32_t argmax(size_t row) const { return argmax_[row]; }
  // In nats, of rows [first, first + result.size()); for people, not for weights. A row whose
  // weight is 0 is left out. The threads of `pool` share them.
  void entropies(std::span<const float> weights, std::span<float> result, ThreadPool& pool) const;

  int64_t rows() const { return rows_; }
  int64_t vocab() const { return vocab_; }
  // On the device.
  const float* logits() const { return logits_; }
  const float* device_max() const { return device_.max.data(); }
  const float* device_log_sum() const { return device_.log_sum.data(); }
  const int32_t* device_tokens() const { return device_.tokens.data(); }

 private:
  struct Arrays {
    DeviceArray<int32_t> tokens, argmax;
    DeviceArray<float> max, log_sum, picked;
    DeviceArray<bool> has_nan;
  };

  Device& memory_;
  Arrays device_;
  const float* logits_ = nullptr;
  int64_t rows_ = 0, vocab_ = 0;
  std::vector<int32_t> argmax_;
  std::vector<float> max_, log_sum_, picked_;
  std::unique_ptr<bool[]> has_nan_;
};

}  // namespace invar
