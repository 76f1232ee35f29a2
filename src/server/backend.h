// Where answers are computed. Behind this interface stands an engine in this process
// (inproc_backend.h) or in another one; the front does not know which. Only token ids and plain
// data cross it: no text, no tensor.
//
// A request is the engine's (engine/request.h): one for each choice of an answer. A backend that
// loses its engine starts it again and submits every unfinished request once more: the same request
// gives the same tokens, so it drops what the sink already has (TokenOutput::index) and goes on.
// The sink sees a pause and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "engine/sleep.h"

namespace invar {
class WeightReceiver;
}

namespace invar::server {

// Facts of the engine and its model; only `weights` changes, by take_weights.
struct BackendFacts {
  std::string identity;         // of the arithmetic, e.g. "invar-1/portable/bf16/row8.8"
  Digest specification{};       // of what the model computes beside them (numerics 8)
  Digest weights{};             // of the weights (numerics 8)
  std::string instruction_set;  // or "cuda"
  int32_t vocab = 0;
  int32_t max_model_len = 0;  // tokens of a prompt and its answer
  std::vector<int32_t> end_tokens;
  bool prompt_logprobs = false;  // whether requests may ask for them
  int32_t block_size = 0;        // slots of a block of the KV cache
  bool prefix_caching = false;   // whether requests share blocks
  int32_t routed_columns = 0;    // experts that a token is routed to in all layers; 0: none
  int32_t vector_size = 0;       // numbers of the vector of a text
  int32_t routed_layers = 0;     // layers with experts
};

// Numbers for /metrics. Counters grow from the start of the server on. Values of the moment have 32
// bits, counters 64.
struct BackendStats {
  int32_t running = 0, waiting = 0;
  int32_t max_running = 0;  // most sequences that run at the same time
  int32_t blocks = 0, free_blocks = 0;
  int64_t steps = 0, rows = 0, samples = 0, preemptions = 0;
  int64_t prompt_tokens = 0,
          cached_tokens = 0;  // of prompts that were begun; from the prefix cache
  // Speculation: trees of drafts, their nodes, drafts that were accepted, and among these those at
  // the first, second ... position behind the known tokens.
  int64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::vector<int64_t> accepted_at;
};

// The work of one engine's step, and the wait that it meant for those who decode.
struct StepRecord {
  int64_t end_ns = 0;          // when it was over, of the machine's steady clock
  int64_t ns = 0;              // it took
  int64_t device_idle_ns = 0;  // a GPU had nothing to do before it, with requests there
  int32_t engine = 0;          // which of the replicas computed it
  int32_t decode_rows = 0, prompt_rows = 0, draft_rows = 0;
  int32_t accepted = 0;       // drafts that were the answer's next tokens
  int32_t stalled = 0;        // answers that had begun and got no row
  int32_t widest_gap_us = 0;  // the longest time between two tokens of an answer that ended here
  int32_t running = 0, waiting = 0;
  int32_t used_blocks = 0, preempted = 0;
  int32_t tokens = 0;  // that answers got

  bool operator==(const StepRecord&) const = default;
};

// A request's first row is computed: of the machine's steady clock, as StepRecord's. Again after a
// preemption or with another engine.
struct RequestBegun {
  int64_t request = 0, at_ns = 0;
  int64_t cached = 0;  // tokens of its prompt that the prefix cache had
};

// Adds the counts of another engine; the second all but what is so at the moment.
void add_to(BackendStats& all, const BackendStats& one);
void add_counters(BackendStats& all, const BackendStats& one);

// Takes what the engine answers: on_prompt and on_token for each request in order, or on_pooled,
// from threads of the backend (one for each replica), which must not be kept waiting. A token with
// a finish reason is a request's last word, as is a vector; a failure of either kind is a token.
class BackendSink : public OutputSink {
 public:
  virtual void on_begun(const RequestBegun&) {}
  // A step that computed rows is over; before its on_step_end.
  virtual void on_step(const StepRecord&) {}
  // Several calls of the others stand together: a step of the engine is over.
  virtual void on_step_end() = 0;
  // The engine cannot go on, because of this sentence: no live request hears another word.
  virtual void on_failure(const std::string& sentence) = 0;
};

// Every call throws this after BackendSink::on_failure.
class EngineFailed : public Error {
 public:
  using Error::Error;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Called once, before any request. Calls may come in from several threads from then on.
  virtual void start(BackendSink& sink) = 0;
  // Returns when the sink hears nothing more, whatever is unfinished: only after that may it go.
  // Nothing is asked of the backend from then on but this, and its end.
  virtual void stop() = 0;
  virtual BackendFacts facts() const = 0;
  virtual BackendStats stats() const = 0;

  // Throws UsageError, with one sentence, for a request that can never be answered; after that the
  // sink hears of it until it is finished or cancelled.
  virtual void submit(Request request) = 0;
  // The request's blocks are free after the engine's current step; the sink may still hear of it.
  // Ids that are not known are ignored: the request may just have finished.
  virtual void cancel(int64_t id) = 0;
  // Goes on with the checkpoint in `directory` (Model::take) and returns when that is done; blocks
  // of the old weights are forgotten. Only while no request is live. Throws
  // Error, with one sentence; the weights are then those of the checkpoint before.
  virtual void take_weights(const std::string& directory);
  // The same with the tensors that the receiver has of an update; then it has none.
  virtual void take_received(WeightReceiver& receiver);
  // Gives memory back (Engine::sleep) and takes it again. Only while no request is live; none may
  // be submitted before all is back. Throws Error, with one sentence.
  virtual void sleep(const Sleep& what);
  virtual void wake(const Wake& what);
};

}  // namespace invar::server
