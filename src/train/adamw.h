// AdamW over tensors of flat arrays, as numerics 9 prescribes it: what the trainers of models and
// of drafters share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/execution.h"
#include "kernels/training.h"

namespace invar {

// AdamW with linear warm-up, cosine decay and clipping by the norm of all gradients.
struct OptimizerOptions {
  double rate = 1e-3;
  double final_rate = 0.1;  // at the last step, as a part of `rate`
  int64_t warmup = 100;     // steps
  int64_t steps = 1000;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float decay = 0.1f;  // of matrices; norms and biases have none
  double clip = 1.0;   // largest norm; 0: no clipping
};

// The rate of step 1, 2, ... `steps`.
double learning_rate(const OptimizerOptions& options, int64_t step);

// A normal number that depends on (seed, tensor, index) alone: what first weights are made of.
double normal_weight(uint64_t seed, uint32_t tensor, uint64_t index);

// The norm of all gradients from the sums of squares of tensors in the order of their names.
// `failure` gets the first that is not finite.
struct SquaredTensor {
  std::string_view name;
  float sum;
};
double gradient_norm(std::span<const SquaredTensor> tensors, std::string& failure);

class AdamW {
 public:
  struct Tensor {
    std::string name;
    int64_t offset, count;  // within every array
    bool decays;
  };
  struct Arrays {
    const float* gradients;
    float *master, *first, *second;
    bf16_t* rounded;  // the master weights as the forward sees them
  };

  AdamW(const OptimizerOptions& options, const TrainingKernels& kernels,
        std::vector<Tensor> tensors);

  // The sum of squares of each tensor's gradient, by name.
  std::vector<float> squares(const float* gradients, const Execution& on) const;
  // The norm of all gradients. `failure` gets the first tensor by name whose norm is not finite.
  double norm(const float* gradients, const Execution& on, std::string& failure) const;
  // Step number `step`, from 1, by gradients of that norm, of the tensors that the arrays hold.
  void update(int64_t step, double norm, const Arrays& arrays, const Execution& on) const;

 private:
  OptimizerOptions options_;
  TrainingKernels kernels_;
  std::vector<Tensor> tensors_;  // by name
};

}  // namespace invar
