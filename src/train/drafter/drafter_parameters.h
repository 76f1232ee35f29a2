// The tensors of a drafter that is trained, in flat arrays: master weights, the optimizer's
// moments, gradients, and the weights as the forward sees them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/parameter_source.h"
#include "train/adamw.h"
#include "train/trainer.h"

namespace invar {

// A tensor and how it begins: as rows of one of the target's tensors when that is named, as the
// identity behind columns of zeros, with normal numbers when there is a deviation, else with one
// value.
struct DrafterTensor {
  std::string name;  // as it is published
  std::vector<int64_t> shape;
  double deviation = 0;
  float value = 0;
  std::string copied_from = {};
  std::vector<int32_t> copied_rows = {};  // empty: all
  int64_t identity_at = -1;               // the first column of the identity; -1: none

  int64_t count() const;
};

// Small enough that sums over `inputs` products stay near 1.
double first_deviation(int64_t inputs);

class DrafterParameters {
 public:
  DrafterParameters(std::vector<DrafterTensor> tensors, const OptimizerOptions& optimizer,
                    const TrainingKernels& kernels, Device& device);

  // Step 0.
  TrainingState first_state(uint64_t seed, const TensorSource& target) const;
  void load(const TrainingState& state);
  // All but the number of the step.
  void copy_state(TrainingState& state) const;

  // The weights of tensor number `index`, in the order of construction. Matrices whose sizes are
  // multiples of 16 stand without gaps.
  const bf16_t* weights(int index) const { return rounded_.data() + offsets_[index]; }
  float* gradient(int index) { return gradients_.data() + offsets_[index]; }
  int64_t count(int index) const { return tensors_[index].count(); }
  // Where it begins in each array.
  int64_t offset(int index) const { return offsets_[index]; }
  const std::string& name(int index) const { return tensors_[index].name; }
  int tensors() const { return static_cast<int>(tensors_.size()); }
  // Elements of each array, gaps included.
  int64_t size() const { return size_; }
  const TensorSource& source() const { return *source_; }

  void clear_gradients(ThreadPool& pool);
  // One step of the optimizer; returns the norm of the gradients. `failure` gets the tensor whose
  // gradient is not finite, and nothing changes then.
  double update(int64_t step, const Execution& on, std::string& failure);

 private:
  std::vector<DrafterTensor> tensors_;
  std::vector<int64_t> offsets_;
  int64_t size_ = 0;
  DeviceArray<float> master_, first_, second_, gradients_;
  DeviceArray<bf16_t> rounded_;
  std::unique_ptr<ParameterSource> source_;
  std::unique_ptr<AdamW> optimizer_;
};

}  // namespace invar
