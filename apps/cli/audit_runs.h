// The runs that an audit compares: the same requests under a schedule, answered by an engine, by
// several, or by another process.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "command.h"
#include "speculative/replay.h"

namespace invar::cli {

// What a schedule is allowed to choose.
struct Schedule {
  std::string label;
  ModelOptions model;
  EngineOptions engine;
  int neighbours = 0;    // random requests beside the probes
  uint32_t arrival = 0;  // seed of the order of arrival; 0: as listed
  int at_once = 0;       // requests that come before the first step, whatever the order
  bool one_at_a_time = false;
  int rounds = 1;      // of the same requests; the last one counts, so that it finds cached blocks
  std::string drafts;  // the JSON of --speculative-config; empty: none
  // Drafts made of the plain answers, spoiled as it says.
  std::optional<ReplayOptions> replay;
  bool elsewhere = false;      // in a process of its own
  int replicas = 1;            // engines that share the requests, each with a cache of another size
  bool fills_context = false;  // one more probe, whose answer is as long as the context lets it be
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;  // of each token
  std::string hash;                   // of all logits
  bool operator<(const Answer& other) const {
    return std::tie(tokens, hash) < std::tie(other.tokens, other.hash);
  }
};
using Answers = std::map<int64_t, Answer>;  // by request

class Collector final : public OutputSink {
 public:
  void on_token(const TokenOutput& output) override;
  Answers answers;
};

// What a run did, so that an audit can tell that it tried what it says.
struct RunCounts {
  int64_t cached = 0, preempted = 0, accepted = 0;  // accepted: drafts
  int64_t ahead = 0;                                // steps begun before the one before had ended
  int most_live = 0;                                // sequences that hold blocks, at the same time
};

// Keeps the last model, since most schedules differ only in the engine.
class AuditRunner {
 public:
  explicit AuditRunner(int answer_tokens) : answer_tokens_(answer_tokens) {}

  Model& model(const ModelOptions& options);
  // The probes' answers under a schedule.
  Answers run(const Schedule& schedule);
  const RunCounts& counts() const { return counts_; }
  int answer_tokens() const { return answer_tokens_; }

 private:
  std::unique_ptr<Proposer> proposer_of(const Schedule& schedule, Model& model);
  Answers run_engine(const Schedule& schedule);
  Answers run_replicas(const Schedule& schedule);
  std::vector<Request> requests_of(const Schedule& schedule, int vocab) const;
  void count(const StepStats& step);
  Answers run_elsewhere(const Schedule& schedule);

  int answer_tokens_;
  std::unique_ptr<Model> model_;
  RunCounts counts_;
};

// Greedy for even seeds, sampled for odd ones.
Request random_request(int64_t id, int vocab, int prompt, int answer, uint32_t seed);
void run_all(Engine& engine, OutputSink& sink);

json::Value to_json(const Answers& answers);

}  // namespace invar::cli
