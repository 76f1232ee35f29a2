// From the logits of a step to tokens, and to the log-probabilities of prompts.
//
// For every sequence that samples, the target walks down the tree of its drafts: it samples at the
// root with its own noise, goes on below the child that holds the token and ends where none does.
// Each sample is the one of plain decoding at that position, whatever the tree holds (numerics 6);
// what no walk reaches is never looked at. A token of an answer that is held to a form is read by
// its constraint; the work for that is bounded in each step, in the order of the walks, and a token
// beyond it comes later (Engine::settle_late). Or, where `rejects` says so, drafts are accepted by
// rejection (speculative/rejection.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/request_state.h"
#include "model/operation_times.h"
#include "sampling/device_sampler.h"
#include "sampling/logprob.h"
#include "speculative/draft_tree.h"

namespace invar {

class SamplingStage {
 public:
  static constexpr const char* kNotFinite = "a key, a value or a logit was not finite";

  // A token that is sampled and not yet entered: a constraint has to read it first.
  struct Drawn {
    int32_t token = 0;
    Digest digest = {};
    std::optional<TokenLogprobs> logprobs = {};
  };
  struct Walk {
    RequestState* state = nullptr;
    int32_t first_row = 0;    // of the batch: the sequence's first in this step
    int32_t root_row = 0;     // the last known token's; the tree's rows follow
    int32_t root_logits = 0;  // its number among the rows with logits; those of the tree follow
    int32_t position = 0;     // of the token that is sampled after the root
    const DraftTree* tree = nullptr;  // null: no drafts
    int32_t node = -1;                // sampled from last: of the tree, or -1, the root
    bool is_over = false;
    std::vector<int32_t> argmax;       // after the root and every node, where a proposer wants them
    std::vector<TokenOutput> outputs;  // one for each token sampled; the last may be an error
    // Once the walk is over: its only token, which the step's work did not reach.
    std::optional<Drawn> drawn;

    int32_t next_logits() const { return root_logits + 1 + node; }
    int32_t row() const { return root_row + 1 + node; }
  };
  // A position of a prompt whose log-probability is wanted.
  struct Score {
    RequestState* state = nullptr;
    int32_t position = 0;  // the token that the logits predict stands here
    int32_t logits = 0;    // number among the rows with logits
    TokenLogprobs logprobs;
  };

  // `device_sampler` null: logits are read by the host alone. `device_rows`: the most logits that
  // it can have at once.
  SamplingStage(const Kernels& host_kernels, ThreadPool& threads, int32_t vocab,
                std::unique_ptr<DeviceSampler> device_sampler, int32_t device_rows,
                bool wants_argmax = false, bool rejects = false);
  ~SamplingStage();

  // A step begins, whose constraints may do so much work: once it is done, walks end where they
  // stand. Then what is wanted of its logits, in the order of the batch's rows.
  void begin(int64_t work = Constraint::kMostOfStep);
  void add_score(RequestState& state, int32_t position);
  void add_walk(RequestState& state, int32_t position, int32_t first_row, int32_t root_row,
                const DraftTree* tree);

  // Whether the logits may stay on the device, where the sampler does all that is wanted of them.
  bool samples_on_device();
  // Then: puts the sampling from all logits of the step into the device's stream; and waits for it,
  // the only wait of a step, `non_finite` as ForwardIo's, which is there afterwards. Sequences that
  // are over by then are passed over.
  void start_on_device(const float* logits);
  // In between: where the tokens lie on the device, by the number of their logits.
  const int32_t* tokens_on_device() const { return device_sampler_->ids(); }
  void wait_for_device();  // until the tokens are there
  void finish_on_device(std::span<const bool> non_finite);
  // Else: logits from number `first` on, as they come (ForwardIo::take_logits).
  void take_logits(int64_t first, std::span<const float> logits, std::span<const bool> non_finite);

  // Enters a token in an answer, whose constraint then knows what may follow. What the sink is told
  // of it. Takes what that needs from `work`.
  static TokenOutput settle(RequestState& state, Drawn drawn, int64_t& work);

  std::span<Walk> walks() { return {walks_.data(), num_walks_}; }
  std::span<Score> scores() { return scores_; }
  void set_times(OperationTimes* times) { times_ = times; }

 private:
  struct PerThread;

  void go_on(Walk& walk, int64_t first, std::span<const float> logits,
             std::span<const bool> non_finite, PerThread& thread) const;
  void sample(Walk& walk, std::span<const float> logits, PerThread& thread) const;
  void take(Walk& walk, const DeviceSampled& sampled);
  static void draw(Walk& walk, Drawn drawn);
  void settle(Walk& walk);
  void read_score(Score& score, std::span<const float> logits, PerThread& thread) const;
  static const char* make_row(const SampleInput& input, PerThread& thread);
  static bool read_logprobs(const SamplingParams& params, std::span<const float> logits,
                            int32_t token, int32_t top, PerThread& thread, TokenLogprobs& out);
  void read_argmax(Walk& walk, int64_t first, std::span<const float> logits) const;

  ThreadPool& threads_;
  const Kernels& kernels_;  // the host's
  const size_t vocab_;
  const bool wants_argmax_, rejects_;
  const std::unique_ptr<DeviceSampler> device_sampler_;  // or null
  const int64_t device_rows_;
  std::vector<std::unique_ptr<PerThread>> per_thread_;
  OperationTimes* times_ = nullptr;

  // Walks of the current step.
  std::vector<Walk> walks_;  // the first num_walks_; the others keep their memory
  size_t num_walks_ = 0;
  std::vector<Score> scores_;
  int32_t num_logits_ = 0;
  int64_t work_ = 0;                 // of constraints, that is left to this step
  std::vector<SampleInput> inputs_;  // of the device, a row of logits each
  std::vector<Walk*> open_;          // that go on in a piece of the logits
};

}  // namespace invar
