#include "train/device_scores.h"

#include <algorithm>

#include "base/check.h"
#include "numerics/math.h"
#include "sampling/row.h"

namespace invar {

namespace {

float entropy_of(const orders::LogSumExp& sum, std::span<const float> logits) {
  double entropy = 0;
  for (const float logit : logits) {
    if (logit == kExcluded) continue;
    const float x = sum.log_probability(logit);
    entropy -= double{x} * math::exp(x);
  }
  return static_cast<float>(entropy);
}

}  // namespace

DeviceScores::DeviceScores(Device& device, int max_rows)
    : memory_(device), has_nan_(std::make_unique<bool[]>(static_cast<size_t>(max_rows))) {
  const size_t rows = static_cast<size_t>(max_rows);
  const char* what = "log-probabilities";
  device_ = {{device, rows, what}, {device, rows, what}, {device, rows, what},
             {device, rows, what}, {device, rows, what}, {device, rows, what}};
  argmax_.resize(rows);
  for (auto* array : {&max_, &log_sum_, &picked_}) array->resize(rows);
}

void DeviceScores::compute(const Decoder& decoder, const TrainingKernels& kernels,
                           const float* logits, std::span<const int32_t> tokens) {
  CHECK(tokens.size() <= argmax_.size(), "rows of scores");
  logits_ = logits;
  rows_ = std::ssize(tokens);
  vocab_ = decoder.spec.vocab;
  memory_.upload(device_.tokens.data(), tokens.data(), tokens.size_bytes());
  decoder.run(decoder.kernels.log_sum_exp, LogitsParams{.logits = logits,
                                                        .rows = rows_,
                                                        .stride = vocab_,
                                                        .vocab = vocab_,
                                                        .argmax = device_.argmax.data(),
                                                        .max = device_.max.data(),
                                                        .log_sum = device_.log_sum.data(),
                                                        .has_nan = device_.has_nan.data()});
  decoder.run(kernels.pick, PickParams{.x = logits,
                                       .stride = vocab_,
                                       .columns = device_.tokens.data(),
                                       .rows = rows_,
                                       .out = device_.picked.data()});
  const auto fetch = [&]<typename T>(T* to, const DeviceArray<T>& from) {
    memory_.download(to, from.data(), tokens.size() * sizeof(T));
  };
  fetch(argmax_.data(), device_.argmax);
  fetch(max_.data(), device_.max);
  fetch(log_sum_.data(), device_.log_sum);
  fetch(picked_.data(), device_.picked);
  fetch(has_nan_.get(), device_.has_nan);
}

void DeviceScores::entropies(std::span<const float> weights, std::span<float> result,
                             ThreadPool& pool) const {
  constexpr size_t kPiece = 64;  // rows that are fetched at once
  const size_t width = static_cast<size_t>(vocab_);
  std::vector<float> fetched(memory_.is_host() ? 0 : kPiece * width);
  for (size_t first = 0; first < result.size(); first += kPiece) {
    const size_t count = std::min(kPiece, result.size() - first);
    const float* logits = logits_ + first * width;
    if (!memory_.is_host()) {
      memory_.download(fetched.data(), logits, count * width * sizeof(float));
      logits = fetched.data();
    }
    pool.run([&](Part part) {
      for (size_t i = part.index; i < count; i += part.count) {
        const size_t t = first + i;
        if (weights[t] != 0)
          result[t] = entropy_of({max_[t], log_sum_[t]}, {logits + i * width, width});
      }
    });
  }
}

}  // namespace invar
