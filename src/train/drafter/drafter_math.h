// The operations of a drafter's forward and backward: products, norms and losses over T rows, T a
// multiple of 32, by the trainer's kernels and in the orders of numerics 9.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "kernels/training.h"
#include "train/drafter/drafter_parameters.h"
#include "train/scores.h"

namespace invar {

// Activations of one kind: [T][width].
struct FloatRows {
  DeviceArray<float> memory;
  int64_t width = 0;

  float* data() const { return memory.data(); }
  float* row(int64_t t) const { return memory.data() + t * width; }
};
struct RoundedRows {
  DeviceArray<bf16_t> memory;
  int64_t width = 0;

  Activation activation() const { return {memory.data(), DType::bf16, activation_stride(width)}; }
};

// One tensor of the drafter or several that follow each other and meet the same inputs, packed for
// the forward and, by runs of their inputs, for the gradients of these. A gated pair is two
// tensors.
struct TrainedMatrix {
  int first = 0;        // number of the first tensor
  int64_t outputs = 0;  // of all; of one of a gated pair
  int64_t inputs = 0;
  bool is_pair = false;
  Matrix forward;
  std::vector<Matrix> backward;  // equal runs of the inputs
};

class DrafterMath {
 public:
  DrafterMath(Device& device, ThreadPool& pool, const std::string& instruction_set, int max_rows);

  const Execution& on() const { return on_; }
  const Kernels& kernels() const { return kernels_; }
  const TrainingKernels& training() const { return training_; }
  int max_rows() const { return max_rows_; }
  // How many rows the calls below compute.
  void set_rows(int64_t rows) { rows_ = rows; }
  int64_t rows() const { return rows_; }

  FloatRows floats(int64_t width) const;
  RoundedRows rounded(int64_t width) const;
  // The gradients of its inputs are wanted for so many equal runs of them (0: not at all).
  TrainedMatrix matrix(int first, int64_t outputs, int64_t inputs, int runs) const;
  TrainedMatrix gated_pair(int first, int64_t outputs, int64_t inputs) const;
  // After the weights have changed.
  void pack(const DrafterParameters& parameters, const TrainedMatrix& matrix) const;
  std::vector<float> vector_of(const DrafterParameters& parameters, int index) const;

  // One operation on the whole team.
  template <typename P>
  void run(Operation<P> operation, const P& params) const {
    on_.run(operation, params);
  }
  // use(t) for every row, by the team.
  template <typename Use>
  void for_rows(Use use) const {
    on_.pool->run([&](Part part) {
      const auto [begin, end] = part.of(rows_);
      for (int64_t t = begin; t < end; ++t) use(t);
    });
  }

  void product(const Activation& x, const Matrix& w, float* y, bool adds = false) const;
  void gated_product(const Activation& x, const Matrix& w, const Activation& out,
                     float* dots) const;
  void round(const float* x, const RoundedRows& out) const;
  void norm(const float* x, const float* weight, float eps, int64_t width,
            const Activation& out) const;
  // Adds the gradient of a norm's input to dx and that of its weight to `gradient`.
  void norm_backward(const float* dy, const float* x, const float* weight, float eps, int64_t width,
                     float* dx, float* gradient);
  // The gradients of a matrix's tensors from those of its outputs and its inputs. With `begins`
  // their chains begin at +0, else they go on.
  void weight_gradient(DrafterParameters& parameters, const TrainedMatrix& matrix,
                       const Activation& dy, const Activation& x, bool begins);
  Scores scores_of(const float* logits, int64_t vocab) const;
  // The gradient of the logits of a weighted sum of cross-entropies between what the teacher says
  // `shift` rows further and what row t says. Rows that have no such row have weight 0.
  void loss_gradient(const Scores& own, const Scores& teacher, int64_t shift,
                     std::span<const float> weights, const RoundedRows& out) const;

 private:
  Matrix allocate(int64_t n, int64_t k, int matrices = 1) const;

  Device& device_;
  std::unique_ptr<Stream> stream_;
  Execution on_;
  Kernels kernels_;
  TrainingKernels training_;
  int max_rows_;
  int64_t rows_ = 0;
  mutable std::list<DeviceArray<bf16_t>> weights_;
  DeviceArray<bf16_t> transposed_, packed_;  // of weight gradients
  DeviceArray<float> rs_;                    // of norms
};

}  // namespace invar
