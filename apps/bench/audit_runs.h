// The runs that an audit compares: the same requests under a schedule, answered by an engine, by
// several, or by another process.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cli/command.h"
#include "frontend/constraint_compiler.h"
#include "made_adapters.h"
#include "speculative/replay.h"

namespace invar::cli {

// The choices that a schedule is free to make.
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
  // Two more probes, admitted together, that in room for one context cannot both stay to their end.
  bool outgrows_context = false;
  // In an engine's process, as a server has it; or in one that is killed in the middle.
  enum class Place { here, apart, killed } place = Place::here;
  // Before the last round the weights become others, for a round, and then their own again.
  bool swaps_weights = false;
  bool keeps_others = false;  // or stay the others: a foil
  // Every second probe has one of two adapters; neighbours have any of so many, or none. 0: nobody.
  int adapters = 0;
  AdapterUser adapter_user = AdapterUser::cpu;  // beside which matrices
  static constexpr int kMostAdapters = 5, kAdapterRank = 12;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> probabilities;  // of each token
  std::vector<float> prompt;          // log-probabilities of the prompt's tokens, where asked for
  std::string hash;                   // of all logits
  bool operator<(const Answer& other) const {
    return std::tie(tokens, prompt, hash) < std::tie(other.tokens, other.prompt, other.hash);
  }
};
using Answers = std::map<int64_t, Answer>;  // by request

class Collector final : public OutputSink {
 public:
  void on_token(const TokenOutput& output) override;
  void on_prompt(const PromptOutput& output) override;
  Answers answers;
};

// Counts of a run, so that an audit can tell that it tried what it says.
struct RunCounts {
  int64_t cached = 0, preempted = 0, accepted = 0;  // accepted: drafts
  int64_t ahead = 0;                                // steps begun before the one before had ended
  int most_live = 0;                                // sequences that hold blocks, at the same time
};

// The requests of an audit.
struct Probes {
  std::vector<int> prompts;  // tokens of each
  int answer_tokens = 12;
};

// Keeps the last model, since most schedules differ only in the engine.
class AuditRunner {
 public:
  explicit AuditRunner(Probes probes) : probes_(std::move(probes)) {}

  std::shared_ptr<Model> model(const ModelOptions& options);
  // The probes' answers under a schedule.
  Answers run(const Schedule& schedule);
  const RunCounts& counts() const { return counts_; }
  int answer_tokens() const { return probes_.answer_tokens; }

 private:
  InstanceOptions options_of(const Schedule& schedule) const;
  std::unique_ptr<Proposer> replay_of(const Schedule& schedule, Model& model);
  Answers run_engine(const Schedule& schedule);
  void run_round(const Schedule& schedule, Engine& engine, Collector& collector);
  void swap_weights(const Schedule& schedule, Engine& engine);
  Answers run_replicas(const Schedule& schedule);
  std::vector<Request> requests_of(const Schedule& schedule, int vocab);
  std::vector<Request> probes(int vocab);
  void give_adapters(const Schedule& schedule, std::vector<Request>& requests);
  void count(const StepStats& step);
  Answers run_elsewhere(const Schedule& schedule) const;

  const Probes probes_;
  std::shared_ptr<Model> model_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ConstraintCompiler> constraints_;  // over it
  std::optional<MadeAdapters> adapters_;           // made when a schedule has some
  RunCounts counts_;
};

// Greedy for even seeds, sampled for odd ones.
Request random_request(int64_t id, int vocab, int prompt, int answer, uint32_t seed);
void run_all(Engine& engine, OutputSink& sink);
// Ids from here on are those of neighbours.
inline constexpr int64_t kFirstNeighbour = 1000;
void drop_neighbours(Answers& answers);

// Arguments that name this model on the command line, for a process of its own.
std::vector<std::string> arguments_of(const ModelOptions& options);
// The requests answered by the engine's process of a server (audit_process.cc).
Answers run_in_process(const Schedule& schedule, std::vector<Request> requests,
                       const Tokenizer& tokenizer);

json::Value to_json(const Answers& answers);

}  // namespace invar::cli
