// One optimizer step after another. The weights after N steps are a function of the options above
// the line, the first weights and the rows; threads, batches, ranks, instruction sets and
// recomputation are schedules of it (numerics 9).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/families/families.h"
#include "model/operation_times.h"
#include "model/parameters.h"
#include "sampling/params.h"
#include "train/adamw.h"
#include "train/lora.h"
#include "train/packed_row.h"
#include "weights/tensor_source.h"

namespace invar {

// The next token also from the residual stream after some layers, through the same final norm and
// head: a model that can stop early.
struct ExitLoss {
  int layers = 0;    // 1 .. the model's - 1
  float weight = 0;  // beside the last layer's 1
};

// A model of the same vocabulary whose probabilities are learned too (distillation).
struct TeacherOptions {
  ModelConfig model;
  std::shared_ptr<const TensorSource> weights;  // bf16; null: no teacher
  float share = 0.5f;                           // of the targets; the rest are the next tokens
};

struct TrainerOptions {
  ModelConfig model;
  std::vector<ExitLoss> exits;  // layers ascending
  float mtp_weight = 0;  // of the module that predicts one token further, if the model has one
  // Every so many positions it goes on from what it left at the position before; 0: never.
  int mtp_own_every = 0;
  TeacherOptions teacher;
  LoraOptions lora;  // an adapter that is trained in the place of the model
  // The rows' tokens are drawn so: loss and log-probabilities are those of the row after
  // temperature, min-p, top-k and top-p (numerics 6). Nothing else of it counts.
  SamplingParams sampled;
  double balance = 0;  // weight of the loss that balances experts (numerics 9), if there are any
  int context = 512;   // positions of a row, a multiple of 32
  int rows = 32;       // of a step
  int groups = 4;      // of rows, a power of two: the tree over gradients
  Order order = Order::portable;  // or hopper, that of Hopper's tensor cores
  OptimizerOptions optimizer;
  // ---- Below here nothing shows in the weights.
  int batch_rows = 8;  // rows that are computed at once
  int ranks = 1;       // data-parallel ranks, a power of two up to `groups`
  // This process's rank, where each is a process; null: they are threads of this one.
  class Group* group = nullptr;
  int threads = 0;  // of each rank; 0: one per core
  // cpu, cuda or cuda:N. On a GPU there is one rank, without a teacher.
  std::string device = "cpu";
  std::string instruction_set = "auto";
  bool recompute = false;  // activations twice instead of kept
};

// "train-1/g4": what the bits of a training run depend on beside the model's identity.
std::string training_identity(const TrainerOptions& options);

struct StepReport {
  int64_t step = 0;
  double loss = 0;  // mean over the wanted tokens
  std::vector<double> exit_losses;
  double mtp_loss = 0;
  double gradient_norm = 0;
  double rate = 0;
  int64_t tokens = 0;  // positions computed
  double seconds = 0;
};

// The scores of the module that predicts one token further, over the tokens that are wanted.
struct MtpScore {
  double loss = 0;     // sum of -log-probability
  int64_t count = 0;   // tokens
  int64_t agreed = 0;  // where its likeliest token is the model's likeliest one
};

// The state of a run between two steps: flat arrays in the layout's order.
struct TrainingState {
  int64_t step = 0;
  std::vector<float> master, first, second;
};

// Step 0 of training that goes on from a model's weights. Throws Error where they are stored in
// blocks: nothing puts trained weights back into such.
TrainingState starting_state(const DecoderSpec& spec, const TensorSource& stored);

class Trainer {
 public:
  // Begins with random weights, or an adapter that changes nothing yet. Throws UsageError when the
  // options do not fit together.
  Trainer(const TrainerOptions& options, uint64_t seed);
  // Goes on from a state.
  Trainer(const TrainerOptions& options, const TrainingState& state);
  // The same of arrays "first", "master" and "second" of f32, of which each rank reads its own
  // part.
  Trainer(const TrainerOptions& options, int64_t step, const TensorSource& state);
  ~Trainer();

  const TrainerOptions& options() const { return options_; }
  const ParameterLayout& layout() const { return layout_; }
  int64_t steps_done() const { return step_; }

  // One step over rows that the groups share evenly. The loss is the weighted sum over the targets
  // divided by `divisor`, 0: by the sum of the weights. Throws Error naming step and tensor when a
  // gradient is not finite; the state is then that of the step before. `times` gets the operations
  // of rank 0.
  StepReport step(std::span<const PackedRow> rows, double divisor = 0,
                  OperationTimes* times = nullptr);

  // Where ranks are processes, these, too, are for all of them to call together.
  // Log-probabilities of the targets, all positions of all rows, by the forward and the function of
  // the sampler. Any number of rows. `entropies`, when not null: in nats, of the positions whose
  // weight is not 0. Throws Error when a logit is not finite.
  std::vector<float> log_probabilities(std::span<const PackedRow> rows,
                                       std::vector<float>* entropies = nullptr);

  // The whole rows of logits behind them: `take` gets position t of row r and its logits, in order.
  // REQUIRES: one rank.
  using TakeLogits = std::function<void(size_t row, size_t position, std::span<const float>)>;
  void logits(std::span<const PackedRow> rows, const TakeLogits& take);

  // The experts that the rows' positions go through, [rows][context][layers with experts][chosen].
  std::vector<int32_t> routed_experts(std::span<const PackedRow> rows);

  // REQUIRES: the model has such a module.
  MtpScore score_mtp(std::span<const PackedRow> rows);

  // The weights that the ranks keep; valid until the next step. Where they are processes it is read
  // within read_together, by the first one. The weights that the forward computes with, under the
  // decoder's names; w where the family stores that and the decoder has 1 + w. Those of an adapter
  // stand under PEFT's names.
  const TensorSource& weights() const;
  // "first", "master" and "second": f32 in the layout's order.
  const TensorSource& state() const;
  // Where ranks are processes, all call it together: the first does `use`, the others hand over
  // what it reads.
  void read_together(const std::function<void()>& use) const;
  // A copy of the whole state, of ranks that are threads.
  void copy_state(TrainingState& state) const;

 private:
  class Replica;
  // Where the first state comes from, tensor by tensor.
  struct Start {
    struct Tensor {
      float *master, *first, *second;
    };
    int64_t step = 0;
    std::function<void(size_t slot, const Tensor& to)> read;
  };
  static Start random_start(const DecoderSpec& spec, const ParameterLayout& layout, uint64_t seed,
                            class ThreadPool& pool);
  static Start adapter_start(const ParameterLayout& layout, uint64_t seed);
  void check_options() const;
  void check_device_options() const;
  void check_adapter_options() const;
  void start(const Start& start);
  template <typename Use>
  void on_every_rank(Use use);

  TrainerOptions options_;
  ParameterLayout layout_;
  int64_t step_ = 0;
  std::unique_ptr<class OwnedTensors> owned_;
  std::vector<std::unique_ptr<class Group>> groups_;
  std::vector<std::unique_ptr<Replica>> replicas_;  // one per rank that is here
  std::vector<std::unique_ptr<Group>> peers_;       // of ranks on GPUs
  std::unique_ptr<class TrainedArrays> arrays_;
};

}  // namespace invar
