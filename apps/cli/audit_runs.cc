#include "audit_runs.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "drafters/make_proposer.h"

extern char** environ;

namespace invar::cli {

namespace {

constexpr int64_t kFirstNeighbour = 1000;  // ids below are probes

// The requests whose bits are compared: short and long, across the edges of leaves, blocks and
// splits.
std::vector<Request> probes(int vocab, int answer) {
  std::vector<Request> all;
  for (const int prompt : {1, 2, 31, 33, 64, 127, 129, 200})
    all.push_back(random_request(std::ssize(all), vocab, prompt, answer, 100 + prompt));
  return all;
}

void drop_neighbours(Answers& answers) {
  std::erase_if(answers, [](const auto& entry) { return entry.first >= kFirstNeighbour; });
}

// ---- Another process ----

// What this program prints when it is started with these arguments.
std::string output_of_self(std::vector<std::string> arguments) {
  int ends[2];
  if (pipe(ends) != 0) fail("cannot make a pipe for a second process");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; error == 0 && (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0)
    fail("expected the audit's second process to succeed, found status {}", error ? error : status);
  return text;
}

Answers answers_from_json(std::string_view text) {
  Answers answers;
  const json::Value all = json::parse(text, "the second process");
  for (const json::Value& v : all.as_array()) {
    Answer& answer = answers[v.find("id")->as_integer()];
    for (const json::Value& token : v.find("tokens")->as_array())
      answer.tokens.push_back(static_cast<int32_t>(token.as_integer()));
    for (const json::Value& probability : v.find("probabilities")->as_array())
      answer.probabilities.push_back(probability.as_number());
    answer.hash = v.find("logits_hash")->as_string();
  }
  return answers;
}

}  // namespace

Request random_request(int64_t id, int vocab, int prompt, int answer, uint32_t seed) {
  std::mt19937 random(seed);
  Request request{.id = id};
  for (int i = 0; i < prompt; ++i)
    request.prompt.edit().push_back(static_cast<int32_t>(random() % vocab));
  request.params.max_tokens = answer;
  request.params.temperature = seed % 2 ? 0.8 : 0.0;
  request.params.seed = seed;
  request.params.logprobs = 0;
  return request;
}

void run_all(Engine& engine, OutputSink& sink) {
  while (engine.step(sink)) {
  }
}

void Collector::on_token(const TokenOutput& output) {
  Answer& answer = answers[output.request];
  answer.tokens.push_back(output.token);
  if (output.logprobs) answer.probabilities.push_back(std::exp(double{output.logprobs->logprob}));
  answer.hash = to_hex(output.logits_hash);
}

json::Value to_json(const Answers& answers) {
  json::Array all;
  for (const auto& [id, answer] : answers) {
    json::Value v;
    v.set("id", id);
    v.set("tokens", json::Array(answer.tokens.begin(), answer.tokens.end()));
    v.set("probabilities", json::Array(answer.probabilities.begin(), answer.probabilities.end()));
    v.set("logits_hash", answer.hash);
    all.push_back(std::move(v));
  }
  return all;
}

Model& AuditRunner::model(const ModelOptions& options) {
  if (!model_ || model_->options() != options) {
    model_.reset();  // one at a time: they may be large
    model_ = std::make_unique<Model>(options, LoadProgress{}, launch_of(options));
  }
  return *model_;
}

Answers AuditRunner::run(const Schedule& schedule) {
  counts_ = {};
  if (schedule.elsewhere) return run_elsewhere(schedule);
  if (schedule.replicas > 1) return run_replicas(schedule);
  return run_engine(schedule);
}

std::vector<Request> AuditRunner::requests_of(const Schedule& schedule, int vocab) const {
  std::vector<Request> requests = probes(vocab, answer_tokens_);
  if (schedule.fills_context) {
    const int context = schedule.engine.scheduler.max_model_len;
    const int prompt = std::max(1, context - answer_tokens_);
    requests.push_back(random_request(std::ssize(requests), vocab, prompt, context - prompt, 300));
  }
  for (int i = 0; i < schedule.neighbours; ++i)
    requests.push_back(random_request(kFirstNeighbour + i, vocab, 1 + (i * 37) % 90,
                                      1 + (i * 13) % answer_tokens_, 7000 + i));
  std::mt19937 random(schedule.arrival);
  if (schedule.arrival) std::shuffle(requests.begin(), requests.end(), random);
  return requests;
}

void AuditRunner::count(const StepStats& step) {
  counts_.cached += step.cached;
  counts_.preempted += step.preempted;
  counts_.accepted += step.accepted_tokens;
  counts_.ahead += step.ahead;
  counts_.most_live = std::max(counts_.most_live, step.running);
}

// Null where the schedule has no drafts.
std::unique_ptr<Proposer> AuditRunner::proposer_of(const Schedule& schedule, Model& model) {
  const SchedulerOptions& s = schedule.engine.scheduler;
  if (!schedule.drafts.empty())
    return make_proposer(parse_speculative_config(schedule.drafts), model,
                         {.max_sequences = s.max_num_seqs, .context = s.max_model_len});
  if (!schedule.replay) return nullptr;
  Schedule plain = schedule;
  plain.replay.reset();
  std::map<int64_t, std::vector<int32_t>> answers;
  for (const auto& [id, answer] : run_engine(plain)) answers[id] = answer.tokens;
  ReplayOptions options = *schedule.replay;
  options.vocab = model.spec().vocab;
  return std::make_unique<Replay>(options, std::move(answers));
}

Answers AuditRunner::run_engine(const Schedule& schedule) {
  ModelOptions options = schedule.model;
  if (!schedule.drafts.empty())
    options = with_drafter(options, parse_speculative_config(schedule.drafts));
  Model& model = this->model(options);
  const int vocab = model.spec().vocab;
  Engine engine(model, schedule.engine, nullptr, proposer_of(schedule, model));
  Collector collector;
  const auto step = [&] {
    const bool worked = engine.step(collector);
    if (worked) count(engine.last_step());
    return worked;
  };
  for (int round = 0; round < schedule.rounds; ++round) {
    collector.answers.clear();
    std::mt19937 random(schedule.arrival);
    int arrived = 0;
    for (Request& request : requests_of(schedule, vocab)) {
      engine.add(std::move(request));
      if (++arrived < schedule.at_once) continue;
      while (schedule.one_at_a_time && step()) {
      }
      // Late arrivals meet requests that are already being answered.
      for (uint32_t i = schedule.arrival ? random() % 4 : 0; i > 0; --i) step();
    }
    while (step()) {
    }
    if (const std::string broken = engine.check_integrity(); !broken.empty()) fail("{}", broken);
  }
  drop_neighbours(collector.answers);
  return std::move(collector.answers);
}

// Requests are dealt out in turn; the engines compute at the same time, on threads of their own.
Answers AuditRunner::run_replicas(const Schedule& schedule) {
  Model& model = this->model(schedule.model);
  const auto replicas = static_cast<size_t>(schedule.replicas);
  std::vector<std::unique_ptr<ThreadPool>> pools;
  std::vector<std::unique_ptr<Engine>> engines;
  for (size_t i = 0; i < replicas; ++i) {
    EngineOptions options = schedule.engine;
    options.kv_bytes *= static_cast<int64_t>(i + 1);
    pools.push_back(std::make_unique<ThreadPool>(1));
    engines.push_back(std::make_unique<Engine>(model, options, pools.back().get()));
  }
  size_t next = 0;
  for (Request& request : requests_of(schedule, model.spec().vocab))
    engines[next++ % replicas]->add(std::move(request));
  std::vector<Collector> collectors(replicas);
  std::mutex counting;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < replicas; ++i)
      threads.emplace_back([&, i] {
        while (engines[i]->step(collectors[i])) {
          const std::lock_guard lock(counting);
          count(engines[i]->last_step());
        }
      });
  }
  Answers answers;
  for (Collector& collector : collectors) answers.merge(collector.answers);
  drop_neighbours(answers);
  return answers;
}

Answers AuditRunner::run_elsewhere(const Schedule& schedule) {
  const ModelOptions& o = schedule.model;
  return answers_from_json(output_of_self(
      {"invar", "audit", o.model, "--load-format", o.load_format, "--arith", o.arithmetic,
       "--weights", o.weights, "--device", o.device, "--isa", o.instruction_set, "--threads",
       fmt::to_string(o.threads), "--only-answers", fmt::to_string(answer_tokens_)}));
}

}  // namespace invar::cli
