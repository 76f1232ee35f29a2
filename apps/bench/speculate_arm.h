// A way to decode that invar bench speculate measures: plain, or by a proposer.
#pragma once

#include <map>

#include "cli/command.h"
#include "speculative/adaptive.h"

namespace invar::cli {

using AnswerTokens = std::map<int64_t, std::vector<int32_t>>;  // by request

// The steps in which nothing but answers was computed.
struct Measured {
  // The work of one step and the times of its parts.
  struct Step {
    int64_t rows = 0;  // of the target
    double draft = 0;  // seconds: the proposer's, its share of keeping hidden states included
    double verify = 0;
    int64_t wanted = 0;  // nodes of its drafts
  };
  std::vector<Step> steps;
  double seconds = 0;
  double cpu_seconds = 0;  // of the process: others that use the machine hardly change them
  int64_t tokens = 0, drafts = 0, draft_tokens = 0, accepted = 0;
  int64_t tried = 0;    // drafted tokens of a chain behind which all others were right
  int64_t changed = 0;  // answers that are not the plain ones

  void add(const Measured& other);
  double rate() const { return static_cast<double>(tokens) / seconds; }
  double cpu_rate() const { return static_cast<double>(tokens) / cpu_seconds; }
  double rows_per_step() const;
  // Tokens per second that the parts of the steps say: for each number of rows the median time of
  // verification, for each number of nodes that of drafting. The host's time beside both is
  // missing.
  double predicted_rate() const;
  double mean_draft_seconds() const;  // of a drafted token
};

// A proposer that watches another's time.
class Watch final : public ForwardingProposer, public HiddenReader, public ArgmaxReader {
 public:
  explicit Watch(std::unique_ptr<Proposer> inner)
      : ForwardingProposer(std::move(inner)),
        hidden_reader_(ForwardingProposer::hidden_reader()),
        argmax_reader_(ForwardingProposer::argmax_reader()) {}

  HiddenReader* hidden_reader() override { return hidden_reader_ ? this : nullptr; }
  ArgmaxReader* argmax_reader() override { return argmax_reader_ ? this : nullptr; }
  std::span<const int32_t> aux_layers() const override { return hidden_reader_->aux_layers(); }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void observe_argmax(int64_t id, std::span<const int32_t> tokens) override;
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override;
  void observe(int64_t id, int32_t proposed, int32_t accepted) override;
  void observe_step(int64_t rows, double seconds) override;

  // Returns the step that ends; the next one begins from 0.
  Measured::Step take_step() { return std::exchange(step_, {}); }
  int64_t take_tried() { return std::exchange(tried_, 0); }

 private:
  // The inner proposer's, or null.
  HiddenReader* const hidden_reader_;
  ArgmaxReader* const argmax_reader_;
  Measured::Step step_;
  int64_t tried_ = 0;
};

// A replaying proposer knows the plain answer, spoils as many drafts as it is told, and pays for
// each token that it drafts. It computes one layer and the head of the target, or what the method
// `drafter` (as vLLM's JSON) computes, whose own drafts are thrown away.
struct ReplaySpec {
  double right = 1;
  int32_t tokens = 4;
  bool pays = true;
  std::string drafter = {};
  bool adaptive = false;  // lengths
};

class Arm {
 public:
  // `config`: a method as vLLM's JSON; empty: plain. With `replay` the config is its name.
  Arm(const std::shared_ptr<Model>& model, std::string config, int batch,
      const ReplaySpec* replay = nullptr);
  ~Arm();

  // All requests at once, step by step, so that several arms can take turns. `plain`: answers that
  // a replaying proposer reads.
  void begin(const std::vector<Request>& requests, const AnswerTokens& plain);
  bool step();  // false when all answers are there
  Measured end();

  const std::string& config() const { return config_; }
  const AnswerTokens& answers() const { return answers_; }  // of the last run
  // Its drafts are accepted by rejection: sampled answers depend on them.
  bool may_change_answers() const { return may_change_answers_; }
  const Adaptive* adaptive() const { return adaptive_; }
  int64_t drafter_bytes() const { return drafter_bytes_; }
  void set_times(OperationTimes* times) { instance_->engine().set_times(times); }

 private:
  class PaidReplay;
  struct Keep;

  // The proposer, or null, within a Watch.
  std::unique_ptr<Proposer> make_watched(Model& model, int batch, const ReplaySpec* replay);

  std::string config_;
  Watch* watch_ = nullptr;
  const Adaptive* adaptive_ = nullptr;
  PaidReplay* replay_ = nullptr;
  int64_t drafter_bytes_ = 0;  // by which this process grew when the drafter was made
  std::unique_ptr<Instance> instance_;
  bool may_change_answers_ = false;
  int64_t next_id_ = 0;
  Measured measured_;  // since begin()
  AnswerTokens answers_;
};

}  // namespace invar::cli
