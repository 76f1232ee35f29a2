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
#include "model/families/make_model.h"

extern char** environ;

namespace invar::cli {

namespace {

// ---- Another process ----

// Starts this program with these arguments and returns its output.
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
    for (const json::Value& logprob : v.find("prompt")->as_array())
      answer.prompt.push_back(static_cast<float>(logprob.as_number()));
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

void Collector::on_prompt(const PromptOutput& output) {
  answers[output.request].prompt.push_back(output.logprobs.logprob);
}

void drop_neighbours(Answers& answers) {
  std::erase_if(answers, [](const auto& entry) { return entry.first >= kFirstNeighbour; });
}

json::Value to_json(const Answers& answers) {
  json::Array all;
  for (const auto& [id, answer] : answers) {
    json::Value v;
    v.set("id", id);
    v.set("tokens", json::Array(answer.tokens.begin(), answer.tokens.end()));
    v.set("probabilities", json::Array(answer.probabilities.begin(), answer.probabilities.end()));
    json::Array prompt;
    for (const float logprob : answer.prompt) prompt.emplace_back(double{logprob});
    v.set("prompt", std::move(prompt));
    v.set("logits_hash", answer.hash);
    all.push_back(std::move(v));
  }
  return all;
}

std::shared_ptr<Model> AuditRunner::model(const ModelOptions& options) {
  if (!model_ || model_->options() != options) {
    model_.reset();  // one at a time: they may be large
    model_ = std::make_shared<Model>(options, LoadProgress{}, launch_of(options));
  }
  return model_;
}

Answers AuditRunner::run(const Schedule& schedule) {
  counts_ = {};
  if (schedule.elsewhere) return run_elsewhere(schedule);
  if (schedule.replicas > 1) return run_replicas(schedule);
  if (schedule.place != Schedule::Place::here) {
    const int vocab = model(schedule.model)->spec().vocab;
    std::vector<Request> requests = requests_of(schedule, vocab);
    Answers answers = run_in_process(schedule, std::move(requests), *tokenizer_);
    drop_neighbours(answers);
    return answers;
  }
  return run_engine(schedule);
}

// The requests whose bits are compared: short and long, across the edges of leaves, blocks and
// splits; and one of each kind that is sampled otherwise or tells more.
std::vector<Request> AuditRunner::probes(int vocab) {
  const int answer = probes_.answer_tokens;
  std::vector<Request> all;
  const auto add = [&](int prompt) -> Request& {
    all.push_back(random_request(std::ssize(all), vocab, prompt, answer, 100 + prompt));
    return all.back();
  };
  for (const int prompt : probes_.prompts) add(prompt);
  Request& penalised = add(41);
  penalised.params.repetition_penalty = 1.3;
  penalised.params.frequency_penalty = 0.4;
  penalised.params.presence_penalty = 0.2;
  penalised.params.logit_bias = std::vector<std::pair<int32_t, double>>{{3, 1.5}};
  Request& scored = add(45);  // what `echo` shows of a prompt, too
  scored.params.prompt_logprobs = 0;
  if (!tokenizer_) {
    tokenizer_.emplace(open_tokenizer(*model_));
    constraints_.emplace(*tokenizer_);
  }
  Request& held = add(47);
  held.structured_output = std::string(R"({"regex": "[a-z]{3} [0-9]+"})");
  constraints_->hold(held);
  return all;
}

std::vector<Request> AuditRunner::requests_of(const Schedule& schedule, int vocab) {
  const int answer = probes_.answer_tokens;
  std::vector<Request> requests = probes(vocab);
  if (schedule.fills_context) {
    const int context = schedule.engine.scheduler.max_model_len;
    const int prompt = std::max(1, context - answer);
    requests.push_back(random_request(std::ssize(requests), vocab, prompt, context - prompt, 300));
  }
  if (schedule.outgrows_context) {
    // From a quarter of it each to a block more than a half, side by side, before anybody else.
    const int quarter = schedule.engine.scheduler.max_model_len / 4;
    const auto id = std::ssize(requests);
    for (int i = 0; i < 2; ++i) {
      Request grows = random_request(id + i, vocab, quarter, quarter + schedule.engine.block_size,
                                     static_cast<uint32_t>(300 + i));
      grows.params.ignore_eos = true;
      requests.insert(requests.begin(), std::move(grows));
    }
  }
  for (int i = 0; i < schedule.neighbours; ++i)
    requests.push_back(random_request(kFirstNeighbour + i, vocab, 1 + (i * 37) % 90,
                                      1 + (i * 13) % answer, 7000 + i));
  if (schedule.adapters > 0) give_adapters(schedule, requests);
  std::mt19937 random(schedule.arrival);
  if (schedule.arrival) std::shuffle(requests.begin(), requests.end(), random);
  return requests;
}

void AuditRunner::give_adapters(const Schedule& schedule, std::vector<Request>& requests) {
  if (!adapters_)
    adapters_.emplace(model_->spec(), schedule.adapter_user, Schedule::kAdapterRank,
                      Schedule::kMostAdapters, 0.1F);
  for (Request& request : requests) {
    const int number = static_cast<int>(request.id % kFirstNeighbour);
    const bool is_probe = request.id < kFirstNeighbour;
    const int adapter =
        is_probe ? (number % 2 ? number / 2 % 2 : -1) : number % (schedule.adapters + 1) - 1;
    if (adapter >= 0) request.adapter = (*adapters_)[adapter];
  }
}

void AuditRunner::count(const StepStats& step) {
  counts_.cached += step.cached;
  counts_.preempted += step.preempted;
  counts_.accepted += step.accepted_tokens;
  counts_.ahead += step.ahead;
  counts_.most_live = std::max(counts_.most_live, step.running);
}

// Drafts made of the plain answers, or null.
std::unique_ptr<Proposer> AuditRunner::replay_of(const Schedule& schedule, Model& model) {
  if (!schedule.replay) return nullptr;
  Schedule plain = schedule;
  plain.replay.reset();
  std::map<int64_t, std::vector<int32_t>> answers;
  for (const auto& [id, answer] : run_engine(plain)) answers[id] = answer.tokens;
  ReplayOptions options = *schedule.replay;
  options.vocab = model.spec().vocab;
  return std::make_unique<Replay>(options, std::move(answers));
}

InstanceOptions AuditRunner::options_of(const Schedule& schedule) const {
  InstanceOptions options{
      .model = schedule.model, .engine = schedule.engine, .replicas = schedule.replicas};
  if (!schedule.drafts.empty()) options.speculation = parse_speculative_config(schedule.drafts);
  options.model.rejection |= options.speculation.rejection;
  options.speculation.rejection = options.model.rejection;
  return options;
}

Answers AuditRunner::run_engine(const Schedule& schedule) {
  InstanceOptions options = options_of(schedule);
  std::shared_ptr<Model> model = this->model(model_options(options));
  if (std::unique_ptr<Proposer> replay = replay_of(schedule, *model))
    options.proposer = [&, made = std::make_shared<std::unique_ptr<Proposer>>(std::move(replay))](
                           Model&) { return std::move(*made); };
  Instance instance(options, model);
  Engine& engine = instance.engine();
  Collector collector;
  for (int round = 0; round < schedule.rounds; ++round) {
    collector.answers.clear();
    run_round(schedule, engine, collector);
    if (schedule.swaps_weights && round == 0) swap_weights(schedule, engine);
  }
  if (schedule.keeps_others) engine.take_weights(*open_weights(model->options()));
  drop_neighbours(collector.answers);
  return std::move(collector.answers);
}

void AuditRunner::run_round(const Schedule& schedule, Engine& engine, Collector& collector) {
  const auto step = [&] {
    const bool worked = engine.step(collector);
    if (worked) count(engine.last_step());
    return worked;
  };
  std::mt19937 random(schedule.arrival);
  int arrived = 0;
  for (Request& request : requests_of(schedule, engine.model().spec().vocab)) {
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

// To other weights, with which the same requests are answered, and back.
void AuditRunner::swap_weights(const Schedule& schedule, Engine& engine) {
  constexpr uint64_t kOthers = 4242;
  engine.take_weights(*dummy_weights(engine.model().spec(), kOthers));
  if (schedule.keeps_others) return;
  Collector unused;
  run_round(schedule, engine, unused);
  engine.take_weights(*open_weights(engine.model().options()));
}

// Requests are dealt out in turn; the engines compute at the same time.
Answers AuditRunner::run_replicas(const Schedule& schedule) {
  const InstanceOptions options = options_of(schedule);
  Instance instance(options, model(model_options(options)));
  const size_t replicas = instance.replicas();
  size_t next = 0;
  for (Request& request : requests_of(schedule, instance.model().spec().vocab))
    instance.engine(next++ % replicas).add(std::move(request));
  std::vector<Collector> collectors(replicas);
  std::mutex counting;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < replicas; ++i)
      threads.emplace_back([&, i] {
        while (instance.engine(i).step(collectors[i])) {
          const std::lock_guard lock(counting);
          count(instance.engine(i).last_step());
        }
      });
  }
  Answers answers;
  for (Collector& collector : collectors) answers.merge(collector.answers);
  drop_neighbours(answers);
  return answers;
}

std::vector<std::string> arguments_of(const ModelOptions& o) {
  std::vector<std::string> arguments = {o.model,
                                        "--load-format",
                                        o.load_format,
                                        "--arith",
                                        o.arithmetic,
                                        "--weights",
                                        o.weights,
                                        "--kv-cache-dtype",
                                        o.kv_cache_dtype,
                                        "--device",
                                        o.device,
                                        "--isa",
                                        o.instruction_set,
                                        "--threads",
                                        fmt::to_string(o.threads),
                                        "--expert-placement-strategy",
                                        o.expert_placement,
                                        "--num-redundant-experts",
                                        fmt::to_string(o.redundant_experts)};
  for (const std::string& key : o.ignored_config_keys) {
    arguments.push_back("--ignore-config-keys");
    arguments.push_back(key);
  }
  return arguments;
}

Answers AuditRunner::run_elsewhere(const Schedule& schedule) const {
  std::vector<std::string> arguments = {"invar", "audit"};
  std::ranges::move(arguments_of(schedule.model), std::back_inserter(arguments));
  arguments.push_back("--only-answers");
  arguments.push_back(fmt::to_string(probes_.answer_tokens));
  for (const int prompt : probes_.prompts) arguments.push_back(fmt::to_string(prompt));
  return answers_from_json(output_of_self(std::move(arguments)));
}

}  // namespace invar::cli
