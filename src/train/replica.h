// One data-parallel rank of a trainer: a whole model, its optimizer state, its share of the groups
// of rows.
#pragma once

#include "collectives/group.h"
#include "model/backward.h"
#include "model/forward.h"
#include "model/parameter_source.h"
#include "train/scores.h"
#include "train/teacher.h"
#include "train/trainer.h"

namespace invar {

class Trainer::Replica {
 public:
  Replica(const TrainerOptions& options, const ParameterLayout& layout, Group& group);

  void load(const TrainingState& state);
  void copy_state(TrainingState& state) const;
  const TensorSource& weights() const { return source_; }

  struct Result {
    // Weighted means over the step's rows, the same on every rank: of the last layer, of exits.
    std::vector<double> losses;
    double gradient_norm = 0;
    std::string failure;  // what was not finite; then nothing has changed
  };
  // Step number `step`, from 1; the ranks of the group call it together. Adds up the times of the
  // operations unless `times` is null.
  Result step(int64_t step, std::span<const PackedRow> rows, OperationTimes* times);

  // Log-probabilities of the targets of up to batch_rows rows.
  void log_probabilities(std::span<const PackedRow> rows, float* out);

 private:
  // The next token from the residual stream after some layers.
  struct Exit {
    DeviceArray<bf16_t> normed, d_logits;
    int64_t head_offset, norm_offset;  // of its chains in an array of gradients
  };

  // One operation on the whole team.
  template <typename Params>
  void run(const char* name, void (*operation)(const Params&, Part), const Params& params) {
    timed(times_, name, [&] { decoder_.run(operation, params); });
  }
  void build_batch(std::span<const PackedRow> rows);
  void run_forward(std::span<const PackedRow> rows, Tape* tape);
  void compute_batch(std::span<const PackedRow> rows, size_t first, double total_weight,
                     float* gradients);
  void compute_group(int group, std::span<const PackedRow> rows, double total_weight);
  void merge_group(int group);
  double gradient_norm(std::string& failure);
  void optimize(int64_t step, float gradient_scale);
  void publish();
  void record_losses(std::span<const PackedRow> rows, const Scores& scores, double* losses) const;
  Activation loss_gradient(const Scores& scores, float weight, DeviceArray<bf16_t>& memory);
  ExitGradient run_exit(size_t index, float* gradients);
  void note_failure(const Scores& scores);
  void add_to(float* gradients, TensorRole role, int64_t from);

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
  std::vector<Exit> exits_;
  DeviceArray<float> exit_logits_;
  std::unique_ptr<Teacher> teacher_;
  int64_t gradient_size_;
  // Gradients of groups that wait for their neighbour in the tree; the last one is being computed.
  std::vector<DeviceArray<float>> gradients_;
  int waiting_ = 0;
  OperationTimes* times_ = nullptr;  // of the current step, or null

  // Of the current batch.
  Batch batch_;
  ForwardIo io_;
  std::string failure_;
  std::vector<int32_t> targets_;
  std::vector<float> weights_;
  Scores scores_, exit_scores_;
  std::vector<double> losses_;  // [1 + exits][rows of the step]
};

}  // namespace invar
