// One data-parallel rank of a trainer: its share of the groups of rows, and the weights and the
// optimizer's state of the tensors that it owns. Where several ranks are a CPU's none has a whole
// model: they gather a layer's weights to compute it, and each keeps its own tensors' part of the
// gradient. Ranks on GPUs, and those that train an adapter, have all of it each, and add up their
// gradients.
#pragma once

#include <optional>

#include "collectives/group.h"
#include "model/backward.h"
#include "model/forward.h"
#include "train/device_scores.h"
#include "train/device_weights.h"
#include "train/gathered_weights.h"
#include "train/model_weights.h"
#include "train/packed_batch.h"
#include "train/sampled_rows.h"
#include "train/teacher.h"
#include "train/trained_adapter.h"
#include "train/trained_arrays.h"
#include "train/trainer.h"
#include "train/training_device.h"

namespace invar {

// The labels of a batch's rows: a token and its weight.
struct Wanted {
  std::vector<int32_t> targets;
  std::vector<float> weights;
};

class Trainer::Replica {
 public:
  // `frozen`: the model beside which an adapter is trained, or null.
  Replica(const TrainerOptions& options, const ParameterLayout& layout, const OwnedTensors& owned,
          Group& group, std::shared_ptr<ModelWeights> frozen);

  // Takes what this rank owns of a state. REQUIRES: all() of the trainer serves the weights.
  void load(const Start& start, const TensorSource& weights);
  OwnedArrays arrays() const {
    return {master_.data(), first_.data(), second_.data(), rounded_.data(), device_.get()};
  }

  struct Result {
    // Weighted means over the step's rows, the same on every rank: of the last layer, of exits, of
    // the module that predicts one token further.
    std::vector<double> losses;
    double gradient_norm = 0;
    std::string failure;  // what was not finite; then nothing has changed
  };
  // Step number `step`, from 1; the ranks of the group call it together. Adds up the times of the
  // operations unless `times` is null.
  Result step(int64_t step, std::span<const PackedRow> rows, double divisor, OperationTimes* times);

  // Log-probabilities of the targets of up to batch_rows rows; see Trainer. These, too, the ranks
  // call together, for any rows. Returns what was not finite, or nothing.
  std::string log_probabilities(std::span<const PackedRow> rows, float* out, float* entropies);
  // `take` gets every position's number in the batch and its logits.
  std::string logits(std::span<const PackedRow> rows,
                     FunctionRef<void(size_t, std::span<const float>)> take);
  void append_routed_experts(std::span<const PackedRow> rows, std::vector<int32_t>& to);
  void score_mtp(std::span<const PackedRow> rows, MtpScore& score);

 private:
  // The next token from the residual stream after some layers.
  struct Exit {
    DeviceArray<bf16_t> normed, d_logits;
    int64_t head_offset, norm_offset;  // of its chains in an array of gradients
  };

  // The module that predicts one token further.
  struct Mtp {
    DeviceArray<bf16_t> d_logits;
    int64_t head_offset, embedding_offset, norm_offset;  // as those of exits
    DeviceArray<float> left;                             // [T][D]: what it left, as it reads that
    Batch batch = {};                                    // the rows with the tokens that follow
    std::vector<int32_t> own_rows;  // that go on from what it left at the row before
    Wanted wanted = {};
  };
  // The teacher and what it says of the batch.
  struct TeacherOfRows {
    Teacher model;
    DeviceScores scores;

    TeacherOfRows(const TrainerOptions& o, const Kernels& kernels, Device& device, ThreadPool& pool)
        : model(o.teacher, kernels, device, pool, o.batch_rows, o.context),
          scores(device, o.batch_rows * o.context) {}
  };
  // Sums of the weights of a step's tokens: of the model's, of the module's.
  struct Totals {
    double model = 0, mtp = 0;
  };

  // One operation on the whole team.
  template <typename Params>
  void run(const char* name, Operation<Params> operation, const Params& params) {
    timed(times_, name, [&] { decoder_.run(operation, params); });
  }
  const DeviceScores* teacher_scores() const { return teacher_ ? &teacher_->scores : nullptr; }
  // Whether this rank keeps a part of the tensors and not all of them.
  bool is_sharded() const { return owned_.ranks() > 1; }
  int own_rank() const { return is_sharded() ? group_.rank() : 0; }
  int64_t own_count() const { return owned_.count(own_rank()); }
  // For what the ranks exchange in the host's memory.
  Execution on_host() const { return device_->is_host() ? decoder_.execution : Execution{}; }
  int loss_count() const { return 1 + static_cast<int>(exits_.size()) + (mtp_ ? 1 : 0); }
  void build_batch(std::span<const PackedRow> rows);
  void give_experts(std::span<const PackedRow> rows);
  void run_forward(std::span<const PackedRow> rows, Tape* tape);
  const float* sampled_logits();
  void run_mtp();
  void forward_mtp();
  void take_own_rows();
  void score_module();
  double balance_weight(size_t rows_of_step) const;
  void compute_batch(std::span<const PackedRow> rows, size_t first, const Totals& totals,
                     float* gradients, bool begins, bool ends);
  void place_gradients(bool in_turn);
  float* work();
  void clear_sums(float* gradients, const ParameterLayout::Unit& unit);
  void clear_sums(float* gradients);
  void keep_own(float* gradients, const ParameterLayout::Unit& unit);
  void gather_losses(std::vector<double>& losses);
  double gradient_norm(std::string& failure);
  void compute_group(int group, std::span<const PackedRow> rows, const Totals& totals);
  void add_up_ranks();
  void merge_group(int group);
  void optimize(int64_t step, double norm);
  void publish();
  void pack_weights();
  void record_losses(const Wanted& wanted, const DeviceScores& scores, double* losses) const;
  Activation loss_gradient(const DeviceScores& scores, const Wanted& wanted, double total,
                           float weight, const DeviceScores* teacher, DeviceArray<bf16_t>& memory);
  ExitGradient run_exit(size_t index, double total, float* gradients);
  void note_failure(const DeviceScores& scores);
  void note_failure(FunctionRef<bool(size_t)> has_failed);
  void clear(float* from, int64_t count);
  void add_to(float* gradients, TensorRole role, int64_t from);
  void add_later_uses(float* gradients);

  const TrainerOptions& options_;
  const ParameterLayout& layout_;
  Group& group_;
  const TrainingDevice on_;
  const std::shared_ptr<Device> device_;
  ThreadPool pool_;  // the host's
  TrainingKernels kernels_;
  AdamW optimizer_;
  const OwnedTensors& owned_;
  DeviceArray<float> master_, first_, second_;  // of the owned tensors
  DeviceArray<bf16_t> rounded_;                 // the master weights as the forward sees them
  std::optional<DevicePacking> packing_;        // once the forward's weights have their memory
  const std::shared_ptr<ModelWeights> model_weights_;
  DecoderWeights& decoder_weights_;
  TransposedWeights& transposed_;
  Decoder decoder_;
  std::unique_ptr<GatheredWeights> gathered_;  // of several ranks
  const TensorSource* weights_ = nullptr;      // of one: as the decoder has them
  std::unique_ptr<TensorSource> decoders_own_;
  SequenceStore kv_;
  Workspace forward_workspace_;
  std::unique_ptr<TrainedAdapter> adapter_;  // that is trained, or null: the model is
  Tape tape_;
  BackwardWorkspace backward_workspace_;
  DeviceArray<bf16_t> d_logits_;
  DeviceArray<float> row_weights_;  // of a loss
  std::vector<Exit> exits_;
  DeviceArray<float> exit_logits_;
  std::unique_ptr<Mtp> mtp_;
  std::unique_ptr<TeacherOfRows> teacher_;
  int64_t gradient_size_;  // of the layout and the chains behind it
  std::optional<GradientPlaces> places_;
  // Gradients of groups, or of the owned tensors in a group of every rank, that wait for their
  // neighbour in the tree; the last one is being computed.
  std::vector<DeviceArray<float>> gradients_;
  DeviceArray<float> work_;  // of several ranks: of the group that is being computed
  int waiting_ = 0;
  OperationTimes* times_ = nullptr;  // of the current step, or null

  // The current batch.
  Batch batch_;
  ForwardIo io_;
  std::vector<int32_t> given_experts_;  // of the rows that name them, as ForwardIo has them
  std::string failure_;
  Wanted wanted_;
  DeviceScores scores_, exit_scores_;
  std::optional<SampledRows> sampled_;  // of a policy that is not sampled as it is
  std::vector<double> losses_;          // [loss_count()][rows of the step]
};

}  // namespace invar
