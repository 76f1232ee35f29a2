#include "train/adamw.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "numerics/math.h"
#include "numerics/philox.h"

namespace invar {

namespace {

constexpr double kPi = 0x1.921fb54442d18p+1;

}  // namespace

double learning_rate(const OptimizerOptions& o, int64_t step) {
  if (step <= o.warmup) return o.rate * static_cast<double>(step) / static_cast<double>(o.warmup);
  const double done =
      static_cast<double>(step - o.warmup) / static_cast<double>(o.steps - o.warmup);
  const double wave = 0.5 * (1.0 + math::sincos(kPi * std::min(done, 1.0)).cos);
  return o.rate * (o.final_rate + (1.0 - o.final_rate) * wave);
}

// Box and Muller.
double normal_weight(uint64_t seed, uint32_t tensor, uint64_t index) {
  const auto bits = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                tensor, static_cast<uint32_t>(RandomPurpose::weight)},
                               seed);
  const double u = (bits[0] + 0.5) * 0x1p-32, angle = 2 * kPi * ((bits[1] + 0.5) * 0x1p-32);
  return __builtin_sqrt(-2 * math::log(u)) * math::sincos(angle).cos;
}

double gradient_norm(std::span<const SquaredTensor> tensors, std::string& failure) {
  double sum = 0;
  for (const SquaredTensor& tensor : tensors) {
    if (!std::isfinite(tensor.sum) && failure.empty())
      failure = fmt::format("the gradient of tensor \"{}\"", tensor.name);
    sum += tensor.sum;
  }
  return __builtin_sqrt(sum);
}

AdamW::AdamW(const OptimizerOptions& options, const TrainingKernels& kernels,
             std::vector<Tensor> tensors)
    : options_(options), kernels_(kernels), tensors_(std::move(tensors)) {
  std::ranges::sort(tensors_, {}, &Tensor::name);
}

std::vector<float> AdamW::squares(const float* gradients, const Execution& on) const {
  std::vector<const float*> tensors;
  std::vector<int64_t> counts;
  for (const Tensor& tensor : tensors_) {
    tensors.push_back(gradients + tensor.offset);
    counts.push_back(tensor.count);
  }
  const size_t count = tensors_.size();
  const char* what = "the norm of the gradient";
  const DeviceArray<const float*> tensors_there(*on.device, count, what);
  const DeviceArray<int64_t> counts_there(*on.device, count, what);
  const DeviceArray<float> sums_there(*on.device, count, what);
  on.device->upload(tensors_there.data(), tensors.data(), count * sizeof(const float*));
  on.device->upload(counts_there.data(), counts.data(), count * sizeof(int64_t));
  on.run(kernels_.squares, SquaresParams{.tensors = tensors_there.data(),
                                         .counts = counts_there.data(),
                                         .count = std::ssize(tensors_),
                                         .sums = sums_there.data()});
  std::vector<float> sums(count);
  on.device->download(sums.data(), sums_there.data(), count * sizeof(float));
  return sums;
}

double AdamW::norm(const float* gradients, const Execution& on, std::string& failure) const {
  const std::vector<float> sums = squares(gradients, on);
  std::vector<SquaredTensor> squared;
  for (size_t i = 0; i < tensors_.size(); ++i) squared.push_back({tensors_[i].name, sums[i]});
  return gradient_norm(squared, failure);
}

void AdamW::update(int64_t step, double norm, const Arrays& arrays, const Execution& on) const {
  const OptimizerOptions& o = options_;
  const auto bias_scale = [&](double beta) {
    return static_cast<float>(1.0 / (1.0 - math::pow(beta, static_cast<double>(step))));
  };
  const bool clips = o.clip > 0 && norm > o.clip;
  AdamParams params{.gradient_scale = clips ? static_cast<float>(o.clip / norm) : 1.0f,
                    .rate = static_cast<float>(learning_rate(o, step)),
                    .beta1 = o.beta1,
                    .beta2 = o.beta2,
                    .eps = o.eps,
                    .first_scale = bias_scale(o.beta1),
                    .second_scale = bias_scale(o.beta2)};
  for (const Tensor& tensor : tensors_) {
    params.gradient = arrays.gradients + tensor.offset;
    params.master = arrays.master + tensor.offset;
    params.first = arrays.first + tensor.offset;
    params.second = arrays.second + tensor.offset;
    params.weights = arrays.rounded + tensor.offset;
    params.count = tensor.count;
    params.decay = tensor.decays ? o.decay : 0.0f;
    on.run(kernels_.adam, params);
  }
}

}  // namespace invar
