// One data-parallel rank of a trainer: a whole model, its optimizer state, its share of the groups
// of rows.
#pragma once

#include "collectives/group.h"
#include "model/backward.h"
#include "model/forward.h"
#include "model/parameter_source.h"
#include "train/trainer.h"

namespace invar {

class Trainer::Replica {
 public:
  Replica(const TrainerOptions& options, const ParameterLayout& layout, Group& group);

  void load(const TrainingState& state);
  void copy_state(TrainingState& state) const;
  const TensorSource& weights() const { return source_; }

  struct Result {
    double loss = 0;  // weighted mean over the step's rows, the same on every rank
    double gradient_norm = 0;
    std::string failure;  // what was not finite; then nothing has changed
  };
  // Step number `step`, from 1; the ranks of the group call it together.
  Result step(int64_t step, std::span<const PackedRow> rows);

  // Log-probabilities of the targets of up to batch_rows rows.
  void log_probabilities(std::span<const PackedRow> rows, float* out);

 private:
  struct Squares;

  void build_batch(std::span<const PackedRow> rows);
  void run_forward(std::span<const PackedRow> rows, Tape* tape);
  void run_backward(std::span<const PackedRow> rows, double total_weight, float* gradients);
  void compute_group(int group, std::span<const PackedRow> rows, double total_weight);
  void merge_group(int group);
  double gradient_norm(std::string& failure);
  void optimize(int64_t step, float gradient_scale);
  void publish();
  float log_probability(size_t t) const;
  void record_losses(std::span<const PackedRow> rows, double* losses) const;

  const TrainerOptions& options_;
  const ParameterLayout& layout_;
  Group& group_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  BackwardKernels kernels_;
  DeviceArray<float> master_, first_, second_;
  DeviceArray<bf16_t> rounded_;  // the master weights as the forward sees them
  ParameterSource source_;
  DecoderWeights decoder_weights_;
  Decoder decoder_;
  TransposedWeights transposed_;
  KvStorage kv_;
  Workspace forward_workspace_;
  Tape tape_;
  BackwardWorkspace backward_workspace_;
  DeviceArray<bf16_t> d_logits_;
  // Gradients of groups that wait for their neighbour in the tree; the last one is being computed.
  std::vector<DeviceArray<float>> gradients_;
  int waiting_ = 0;

  // Of the current batch.
  Batch batch_;
  ForwardIo io_;
  std::string failure_;
  std::vector<int32_t> targets_, argmax_;
  std::vector<float> weights_, max_, log_sum_;
  std::unique_ptr<bool[]> has_nan_;
  std::vector<double> losses_;  // of each row of the step, then of all ranks' rows
};

}  // namespace invar
