#include "train/drafter/drafter_parameters.h"

#include <algorithm>

namespace invar {

namespace {

constexpr int64_t kGrain = 16;  // floats of a cache line
constexpr const char* kParameters = "a drafter's parameters";

// Where each tensor begins, and behind the last one the size of all.
std::vector<int64_t> offsets_of(const std::vector<DrafterTensor>& tensors) {
  std::vector<int64_t> offsets = {0};
  for (const DrafterTensor& tensor : tensors)
    offsets.push_back(offsets.back() + round_up(tensor.count(), kGrain));
  return offsets;
}

void copy_rows(const DrafterTensor& t, const TensorSource& target, float* out) {
  if (t.copied_rows.empty()) return target.read(t.copied_from, 0, t.count(), DType::f32, out);
  const int64_t width = t.count() / std::ssize(t.copied_rows);
  for (const int32_t row : t.copied_rows) {
    target.read(t.copied_from, row * width, width, DType::f32, out);
    out += width;
  }
}

void begin_tensor(const DrafterTensor& t, uint64_t seed, uint32_t number,
                  const TensorSource& target, float* out) {
  if (!t.copied_from.empty()) return copy_rows(t, target, out);
  if (t.identity_at >= 0) {
    for (int64_t i = 0; i < t.shape[0]; ++i) out[i * t.shape[1] + t.identity_at + i] = 1;
    return;
  }
  for (int64_t j = 0; j < t.count(); ++j)
    out[j] = t.deviation > 0 ? static_cast<float>(t.deviation * normal_weight(seed, number, j))
                             : t.value;
}

}  // namespace

int64_t DrafterTensor::count() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

double first_deviation(int64_t inputs) {
  return 0.55 / __builtin_sqrt(static_cast<double>(inputs));
}

DrafterParameters::DrafterParameters(std::vector<DrafterTensor> tensors,
                                     const OptimizerOptions& optimizer,
                                     const TrainingKernels& kernels, Device& device)
    : tensors_(std::move(tensors)), offsets_(offsets_of(tensors_)), size_(offsets_.back()) {
  for (DeviceArray<float>* array : {&master_, &first_, &second_, &gradients_})
    *array = {device, static_cast<size_t>(size_), kParameters};
  rounded_ = {device, static_cast<size_t>(size_), kParameters};
  std::vector<ParameterSource::Tensor> named;
  std::vector<AdamW::Tensor> optimized;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const DrafterTensor& t = tensors_[i];
    named.push_back({t.name, t.shape, offsets_[i]});
    optimized.push_back({t.name, offsets_[i], t.count(), t.shape.size() == 2});
  }
  source_ = std::make_unique<ParameterSource>(named, rounded_.data());
  optimizer_ = std::make_unique<AdamW>(optimizer, kernels, std::move(optimized));
}

TrainingState DrafterParameters::first_state(uint64_t seed, const TensorSource& target) const {
  TrainingState state;
  for (auto* array : {&state.master, &state.first, &state.second})
    array->resize(static_cast<size_t>(size_));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const DrafterTensor& t = tensors_[i];
    float* master = &state.master[static_cast<size_t>(offsets_[i])];
    begin_tensor(t, seed, static_cast<uint32_t>(i), target, master);
  }
  return state;
}

void DrafterParameters::load(const TrainingState& state) {
  std::ranges::copy(state.master, master_.data());
  std::ranges::copy(state.first, first_.data());
  std::ranges::copy(state.second, second_.data());
  for (int64_t i = 0; i < size_; ++i) rounded_.data()[i] = f32_to_bf16(master_.data()[i]);
}

void DrafterParameters::copy_state(TrainingState& state) const {
  state.master.assign(master_.data(), master_.data() + size_);
  state.first.assign(first_.data(), first_.data() + size_);
  state.second.assign(second_.data(), second_.data() + size_);
}

void DrafterParameters::clear_gradients(ThreadPool& pool) {
  pool.run([&](Part part) {
    const auto [begin, end] = part.of(size_, 1024);
    std::fill(gradients_.data() + begin, gradients_.data() + end, 0.0f);
  });
}

double DrafterParameters::update(int64_t step, const Execution& on, std::string& failure) {
  const double norm = optimizer_->norm(gradients_.data(), on, failure);
  if (failure.empty())
    optimizer_->update(step, norm,
                       {.gradients = gradients_.data(),
                        .master = master_.data(),
                        .first = first_.data(),
                        .second = second_.data(),
                        .rounded = rounded_.data()},
                       on);
  return norm;
}

}  // namespace invar
