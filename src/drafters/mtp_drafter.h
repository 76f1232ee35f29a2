// Drafts by the module of multi-token prediction that a target brings along (DeepSeek-V3, section
// 2.2; method "mtp"): one more decoder layer that reads the target's last hidden state and the
// token that followed, and predicts the token after that. For further tokens it is applied again,
// to its own hidden state, as EAGLE's layer is.
//
// A draft token costs one layer and the head. The module computes every row that the target
// computed, once: its keys and values depend on the row's hidden state and the token that follows.
// Rows that the target did not compute (their blocks came from the prefix cache) are missing: the
// module then begins where the target began, as if the text did. It pays where the module was
// trained with the target; the bundled model's is.
#pragma once

#include <unordered_map>

#include "drafters/model_drafter.h"
#include "engine/output_norm.h"

namespace invar {

struct MtpDrafterOptions {
  int32_t num_speculative_tokens = 3;
  double confidence = 0;  // see DraftSampler
  DrafterRoom room;
};

class MtpDrafter final : public Proposer, public HiddenReader {
 public:
  // Throws UsageError unless `target` was loaded with its module (ModelOptions::mtp_module).
  MtpDrafter(Model& target, const MtpDrafterOptions& options, ThreadPool* threads = nullptr);

  std::string_view name() const override { return "mtp"; }
  int32_t most_nodes() const override { return options_.num_speculative_tokens; }
  HiddenReader* hidden_reader() override { return this; }
  std::span<const int32_t> aux_layers() const override { return {&last_layer_, 1}; }
  void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                   int64_t batch_rows) override;
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void forget(int64_t id) override;
  void recover() override;

 private:
  struct Sequence {
    int32_t base = 0;            // the target's position that is the module's 0
    int32_t done = 0;            // rows of the module that are computed, the target's base + i
    int32_t idle_steps = 0;      // that gave one token, since it was drafted for last
    std::vector<float> waiting;  // hidden states of the rows after them

    void restart(int32_t position) {
      base = position;
      done = 0;
      waiting.clear();
    }
  };
  // A sequence that is drafted for in this round.
  struct Draft {
    const DraftRequest* request;
    DraftTree* tree;
    int32_t position = 0;  // of the module's row whose logits are wanted next
    int32_t levels = 0;
  };

  int32_t waiting_rows(const Sequence& sequence) const {
    return static_cast<int32_t>(sequence.waiting.size()) / width_;
  }
  void add_waiting(Sequence& sequence, const KeptRows& kept, std::span<const float> hidden);
  void drop_oldest(Sequence& sequence);
  void compute_waiting(int64_t id, Sequence& sequence, std::span<const int32_t> tokens);
  int32_t add_rows(int64_t id, Sequence& sequence, std::span<const int32_t> tokens, int32_t count);
  int32_t add_sequence(int64_t id);
  std::span<const float> as_read(OutputNorm norm, std::span<const float> hidden);
  bool begin(Draft& draft);
  void want(const Draft& draft);
  void run_batch();
  void clear_batch();
  void sample_next();

  const MtpDrafterOptions options_;
  const int32_t last_layer_, width_, context_;
  const bool reads_output_;  // hidden states behind the last norms
  Model& target_;
  ThreadPool& pool_;
  DraftBlocks blocks_;
  Executor executor_;
  DraftSampler sampler_;
  std::unordered_map<int64_t, Sequence> sequences_;

  // The drafts of this round, and the batch that is being built in it.
  std::vector<Draft> drafts_;
  Batch batch_;
  std::vector<DraftPoint> points_;  // one for each draft that goes on
  std::vector<float> next_hidden_;  // the module's output for them
  std::vector<float> normed_;       // hidden states behind a norm
};

}  // namespace invar
