// Workers wherever they live: the bits of one, drafters that ask them, and what becomes of answers
// when one fails. This program is also what a worker's process runs.
#include "engine/workers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "../support/fixed_drafts.h"
#include "answers.h"
#include "base/fields.h"
#include "collectives/mpi/mpi_group.h"
#include "drafters/make_proposer.h"
#include "engine/agreement.h"
#include "engine/mpi_workers.h"
#include "engine/process_workers.h"
#include "engine/pulse.h"
#include "engine/wires.h"

namespace invar {
namespace {

using testing_engine::Record;

// ---- Messages ----

// A batch that means something.
void fill(Batch& batch, std::mt19937& random) {
  batch = {.rows = {{5, 4, 0, -1}, {6, 5, 0, 0}},
           .sequences = {{{3, 1}}},
           .logit_rows = {1},
           .aux_layers = {0, 2},
           .scratch_blocks = {static_cast<int32_t>(random() % 9)},
           .features = {static_cast<float>(random() % 9)},
           .layer_begin = 1,
           .layer_end = 3,
           .skipped_layers = {2}};
}

template <typename T>
void fill(T& value, std::mt19937& random) {
  if constexpr (std::is_same_v<T, bool>)
    value = true;
  else if constexpr (std::is_arithmetic_v<T>)
    value = static_cast<T>(1 + random() % 1000);
  else if constexpr (std::is_same_v<T, std::string>)
    value = "text " + std::to_string(random());
  else if constexpr (fields::is_one_of<T, std::vector>)
    for (value.resize(1 + random() % 3); auto& element : value) fill(element, random);
  else
    std::apply([&](auto&... field) { (fill(field, random), ...); }, fields_of(value));
}

template <typename T>
std::string bytes_of(const T& message) {
  return to_bytes(WorkerMessage(message));
}

// Each field that was filled comes back, and alone tells the message from an empty one.
template <typename T>
void expect_every_field() {
  std::mt19937 random(1);
  T all;
  fill(all, random);
  EXPECT_EQ(std::get<T>(from_bytes<WorkerMessage>(bytes_of(all), "a message")), all);
  const auto alone = [&](auto& from, auto& into, const T& message) {
    into = from;
    EXPECT_NE(bytes_of(message), bytes_of(T{}));
    EXPECT_EQ(std::get<T>(from_bytes<WorkerMessage>(bytes_of(message), "a message")), message);
    EXPECT_FALSE(message == T{});
  };
  [&]<size_t... I>(std::index_sequence<I...>) {
    (
        [&] {
          T one;
          alone(std::get<I>(fields_of(all)), std::get<I>(fields_of(one)), one);
        }(),
        ...);
  }
  (std::make_index_sequence<fields::count<T>()>());
}

TEST(WorkerMessages, EveryFieldComesBack) {
  expect_every_field<LoadModel>();
  expect_every_field<MakeRunner>();
  expect_every_field<EndRunner>();
  expect_every_field<RunBatch>();
  expect_every_field<CopySlots>();
  expect_every_field<TakeWeights>();
  expect_every_field<GiveMemory>();
  expect_every_field<TakeMemory>();
  // Those that were forgotten when each was written by hand.
  std::mt19937 random(2);
  LoadModel load;
  fill(load, random);
  EXPECT_TRUE(load.options.rejection && load.options.mtp_module);
  MakeRunner runner;
  fill(runner, random);
  EXPECT_GT(runner.limits.exit_layer, 0);
}

// ---- Answers ----

ModelOptions tiny(int ranks = 1, std::vector<int> cuts = {}, const char* executor = "threads") {
  return {.model = "tiny",
          .load_format = "dummy:7",
          .threads = 2,
          .ranks = ranks,
          .executor = executor,
          .layer_cuts = std::move(cuts)};
}

ModelOptions story(const char* executor = "threads") {
  ModelOptions options{
      .model = INVAR_SOURCE_DIR "/models/story", .threads = 2, .executor = executor};
  if (options.executor == "mp") {
    options.ranks = 2;
    options.layer_cuts = {3};
  }
  return options;
}

struct Outcome : Record {
  void on_preempt(int64_t) override { ++preempted; }
  int preempted = 0;
  int accepted = 0;
  int ahead = 0;          // the most steps that were begun before the end of the one before
  int64_t recovered = 0;  // how often: sequences are computed again then, and drafted for otherwise
  std::string failure;    // which ended the engine
};

struct Setting {
  std::string drafts;
  int retries = 2;
  std::function<void(Engine&, int step)> before_step;
  std::optional<bool> async_scheduling;
  int max_num_seqs = 4, rows = 512;
  std::function<void(Engine&)> before_requests;
};

Outcome run(Model& model, const Setting& setting = {}) {
  Outcome outcome;
  EngineOptions options;
  options.kv_bytes = 16 << 20;
  options.scheduler.max_model_len = 256;
  options.scheduler.max_num_seqs = setting.max_num_seqs;
  options.scheduler.max_num_batched_tokens = setting.rows;
  options.async_scheduling = setting.async_scheduling;
  options.prompt_logprobs = true;
  options.retries = setting.retries;
  std::unique_ptr<Proposer> proposer;
  if (!setting.drafts.empty())
    proposer = make_proposer(fixed_drafts(setting.drafts), model, {.max_sequences = 4});
  Engine engine(model, options, nullptr, std::move(proposer));
  if (setting.before_requests) setting.before_requests(engine);
  for (Request& request : testing_engine::all_kinds()) engine.add(std::move(request));
  try {
    for (int step = 0; engine.has_work(); ++step) {
      if (setting.before_step) setting.before_step(engine, step);
      engine.step(outcome);
      outcome.accepted += engine.last_step().accepted_tokens;
      outcome.ahead = std::max(outcome.ahead, engine.last_step().ahead);
      EXPECT_EQ(engine.check_integrity(), "");
    }
  } catch (const std::exception& error) {
    outcome.failure = error.what();
  }
  outcome.recovered = model.workers().generation();
  return outcome;
}

std::unique_ptr<Model> load(const ModelOptions& options) {
  return std::make_unique<Model>(options, LoadProgress{}, launch_of(options));
}

Outcome run(const ModelOptions& options, const Setting& setting = {}) {
  return run(*load(options), setting);
}

TEST(Workers, AnswerTheSameWhereverTheyLive) {
  const Outcome one = run(tiny());
  for (const ModelOptions& options :
       {tiny(2), tiny(1, {1, 3}), tiny(2, {2}), tiny(2, {}, "mp"), tiny(1, {1}, "mp"),
        tiny(2, {1, 2}, "mp"), tiny(2, {2}, "mp-sockets")})
    EXPECT_EQ(run(options).answers, one.answers) << options.ranks << " " << options.executor;
  // The control: other weights in every worker.
  ModelOptions other = tiny(2, {2}, "mp");
  other.load_format = "dummy:8";
  EXPECT_NE(run(other).answers, one.answers);
}

TEST(Workers, AnswerTheSameAfterASleep) {
  const Outcome one = run(tiny());
  const auto slept = [](const Sleep& sleep) {
    return Setting{.before_requests = [=](Engine& engine) {
      engine.sleep(sleep);
      EXPECT_THROW(engine.add(testing_engine::all_kinds().front()), UsageError);
      engine.model().wake({.kv_cache = false});
      EXPECT_THROW(engine.add(testing_engine::all_kinds().front()), UsageError);
      engine.model().wake({});
    }};
  };
  const Sleep lost = Sleep::of_level(2), kept{.kv_cache = true, .weights = Sleep::Weights::kept};
  for (const ModelOptions& options : {tiny(), tiny(2, {2}), tiny(2, {2}, "mp")})
    for (const Sleep& sleep : {lost, kept})
      EXPECT_EQ(run(options, slept(sleep)).answers, one.answers) << options.executor;
  // The control: weights that come back as others.
  const auto model = load(tiny());
  const auto others = dummy_weights(model->spec(), 8);
  const Setting changed{.before_requests = [&](Engine& engine) {
    engine.sleep(lost);
    engine.model().wake({}, others.get());
  }};
  EXPECT_NE(run(*model, changed).answers, one.answers);
}

// Its rows name the tokens by where home's device has them.
TEST(Workers, RanksBeginAStepBeforeTheHostKnowsItsTokens) {
  const Outcome one = run(tiny());
  for (const int ranks : {1, 2, 4}) {
    const auto model = load(tiny(ranks));
    const Outcome ahead = run(*model, {.async_scheduling = true});
    EXPECT_EQ(ahead.answers, one.answers) << ahead.failure;
    EXPECT_EQ(ahead.ahead, 1);
    // The control: one after the other.
    EXPECT_EQ(run(*model, {.async_scheduling = false}).ahead, 0);
  }
}

// ---- Several steps in flight, one for each stage ----

TEST(Pipeline, StagesAreAStepAheadAndAnswersTheSame) {
  const Outcome one = run(tiny());
  for (const auto& [options, ahead] : {std::pair(tiny(1, {1}, "mp"), 1),
                                       {tiny(1, {1, 2, 3}, "mp"), 3},
                                       {tiny(2, {2}, "mp"), 1},
                                       {tiny(1, {2}, "mp-sockets"), 1},
                                       {tiny(1, {1}), 1},
                                       {tiny(1, {1, 2, 3}), 3},
                                       {tiny(2, {2}), 1}}) {
    const auto model = load(options);
    const Outcome answers = run(*model);
    EXPECT_EQ(answers.answers, one.answers) << answers.failure;
    EXPECT_EQ(answers.ahead, ahead);
    // The control: one after the other.
    const Outcome in_turn = run(*model, {.async_scheduling = false});
    EXPECT_EQ(in_turn.answers, one.answers);
    EXPECT_EQ(in_turn.ahead, 0);
  }
}

// Aborts, and the end of an engine, while stages are ahead; the workers go on for the next one.
// Under a launcher, which starts as many processes as a test has workers, those of its job.
std::vector<const char*> executors_here() {
  if (mpi::launch().size > 1) return {"mpi"};
  return {"mp", "threads"};
}
class PipelineOf : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Executors, PipelineOf, testing::ValuesIn(executors_here()));

TEST_P(PipelineOf, AnEngineThatEndsLeavesNothingBehind) {
  const char* executor = GetParam();
  const auto model = load(tiny(1, {1, 2}, executor));
  for (int steps : {1, 2, 3, 9}) {
    Record ignored;
    EngineOptions options;
    options.kv_bytes = 16 << 20;
    options.scheduler.max_model_len = 256;
    options.prompt_logprobs = true;
    Engine engine(*model, options);
    for (Request& request : testing_engine::all_kinds()) engine.add(std::move(request));
    for (int step = 0; step < steps; ++step) engine.step(ignored);
    for (int id = 1; id <= 5; ++id) engine.abort(id);
    EXPECT_EQ(engine.check_integrity(), "");
    if (steps < 9) continue;  // it ends with steps in flight
    EXPECT_THROW(engine.expect_no_work(), Error);
    for (int id = 6; id <= 11; ++id) engine.abort(id);
    engine.expect_no_work();  // as before other weights
    EXPECT_FALSE(engine.has_work());
    EXPECT_EQ(engine.check_integrity(), "");
  }
  EXPECT_EQ(run(*model).answers, run(tiny()).answers);
}

// A message that a worker might not take before home has done its part is sent later.
TEST_P(PipelineOf, ALongMessageWaits) {
  const auto long_prompts = [](const ModelOptions& options) {
    const auto model = load(options);
    Record record;
    EngineOptions e;
    e.kv_bytes = 256 << 20;
    e.scheduler.max_model_len = 512;
    e.scheduler.max_num_batched_tokens = 16384;
    e.scheduler.max_num_seqs = 64;
    Engine engine(*model, e);
    for (int id = 0; id < 24; ++id) {
      Request r{.id = id};
      for (int i = 0; i < 250 + id % 7; ++i) r.prompt.edit().push_back((id * 31 + i * 7) % 500);
      r.params.max_tokens = 5;
      engine.add(std::move(r));
    }
    int most_rows = 0, ahead = 0;
    for (; engine.has_work(); ahead = std::max(ahead, engine.last_step().ahead)) {
      engine.step(record);
      most_rows = std::max(most_rows, engine.last_step().rows);
    }
    EXPECT_GT(most_rows * sizeof(BatchRow), 64U << 10);
    EXPECT_EQ(ahead > 0, !options.layer_cuts.empty());
    return record.answers;
  };
  EXPECT_EQ(long_prompts(tiny(1, {2}, GetParam())), long_prompts(tiny()));
}

TEST(Workers, DraftersOfTheTargetAskThem) {
  const Outcome plain = run(tiny());
  for (const char* drafts :
       {R"({"method":"early_exit","exit_layer":3})",
        R"({"method":"early_exit","exit_layer":2,"speculative_token_tree":"[(0,),(1,),(0,0)]"})",
        R"({"method":"swift","skip_layers":[1]})", R"({"method":"swift"})"})
    for (const ModelOptions& options : {tiny(2, {}, "mp"), tiny(2, {2}, "mp"), tiny(2, {2})}) {
      const Outcome drafted = run(options, {.drafts = drafts});
      EXPECT_EQ(drafted.answers, plain.answers) << drafts << " " << drafted.failure;
      const Outcome here = run(tiny(), {.drafts = drafts});
      EXPECT_EQ(drafted.recovered, 0) << drafts;
      EXPECT_EQ(drafted.preempted, here.preempted) << drafts;
      EXPECT_EQ(drafted.accepted, here.accepted) << drafts;
    }
}

TEST(Workers, HaveTheModuleThatPredictsFurther) {
  const char* mtp = R"({"method":"mtp"})";
  const auto with_module = [&](const char* executor) {
    return with_drafter(story(executor), fixed_drafts(mtp));
  };
  const Outcome plain = run(story());
  const Outcome here = run(with_module("threads"), {.drafts = mtp});
  const Outcome elsewhere = run(with_module("mp"), {.drafts = mtp});
  EXPECT_EQ(here.answers, plain.answers);
  EXPECT_EQ(elsewhere.answers, plain.answers) << elsewhere.failure;
  EXPECT_EQ(elsewhere.accepted, here.accepted);
  EXPECT_GT(here.accepted, 10);
}

// ---- Failures ----

// A rank whose reductions throw when a counter comes to one.
class Faulty final : public Group {
 public:
  Faulty(std::unique_ptr<Group> inner, std::shared_ptr<std::atomic<int>> left)
      : inner_(std::move(inner)), left_(std::move(left)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    if (rank() == 1 && --*left_ == 0) throw std::runtime_error("the rank's cable was pulled");
    inner_->tree_all_reduce(data, count, on);
  }
  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    if (rank() == 1 && --*left_ == 0) throw std::runtime_error("the rank's cable was pulled");
    inner_->all_gather(mine, bytes, all, on);
  }
  void barrier() override { inner_->barrier(); }
  void leave() override { inner_->leave(); }

 private:
  const std::unique_ptr<Group> inner_;
  const std::shared_ptr<std::atomic<int>> left_;
};

// Workers of which rank 1 fails in its `nth` operation after each of `again` restarts, too.
Launch faulty(int nth, int again = 0) {
  auto left = std::make_shared<std::atomic<int>>(0);
  return launch_threads([=, times = again + 1](int ranks) mutable {
    auto groups = make_inproc_groups(ranks);
    if (times-- > 0) *left = nth;
    for (auto& group : groups) group = std::make_unique<Faulty>(std::move(group), left);
    return groups;
  });
}

TEST(Recovery, ARankThatThrowsCostsNobodyAnAnswer) {
  const Outcome whole = run(tiny());
  for (const auto& [nth, drafts] : {std::pair(5, ""),
                                    {300, R"({"method":"early_exit","exit_layer":2})"},
                                    {300, R"({"method":"swift","skip_layers":[1,2]})"},
                                    {777, R"({"method":"draft_model","model":"dummy:9"})"}}) {
    Model model(tiny(2), {}, faulty(nth));
    const Outcome answers = run(model, {.drafts = drafts});
    EXPECT_EQ(answers.failure, "") << drafts << nth;
    EXPECT_EQ(answers.answers, whole.answers) << drafts << nth;
    EXPECT_GT(answers.preempted, 0) << drafts << nth;
  }
}

// The same of a rank of any stage, while others are a step ahead.
TEST(Recovery, AThreadOfAStageThatThrowsCostsNobodyAnAnswer) {
  const Outcome whole = run(tiny());
  for (const int nth : {5, 60, 177}) {
    Model model(tiny(2, {1, 3}), {}, faulty(nth));
    const Outcome answers = run(model);
    EXPECT_EQ(answers.failure, "") << nth;
    EXPECT_EQ(answers.answers, whole.answers) << nth;
    EXPECT_GT(answers.preempted, 0) << nth;
    EXPECT_EQ(answers.ahead, 2);
  }
  Model model(tiny(2, {2}), {}, faulty(60));
  EXPECT_EQ(run(model, {.retries = 0}).failure, "the rank's cable was pulled");
}

// A rank whose device has to say, once it was waited for, that another one did not come.
class Unfinished final : public Group {
 public:
  Unfinished(std::unique_ptr<Group> inner, std::shared_ptr<std::atomic<int>> left)
      : inner_(std::move(inner)), left_(std::move(left)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    inner_->tree_all_reduce(data, count, on);
    if (rank() == 0 && --*left_ == 0) data[0] += 1, is_whole_ = false;
  }
  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    inner_->all_gather(mine, bytes, all, on);
  }
  void barrier() override { inner_->barrier(); }
  void leave() override { inner_->leave(); }
  void expect_whole() override {
    if (!is_whole_) throw PeerLeft("a rank did not come");
  }

 private:
  const std::unique_ptr<Group> inner_;
  const std::shared_ptr<std::atomic<int>> left_;
  bool is_whole_ = true;
};

TEST(Recovery, ASumThatWasNotFinishedCostsNobodyAnAnswer) {
  const Outcome whole = run(tiny());
  for (const bool async : {false, true}) {
    const auto left = std::make_shared<std::atomic<int>>(100);
    Model model(tiny(2), {}, launch_threads([=](int ranks) {
                  auto groups = make_inproc_groups(ranks);
                  for (auto& group : groups)
                    group = std::make_unique<Unfinished>(std::move(group), left);
                  return groups;
                }));
    const Outcome answers = run(model, {.async_scheduling = async});
    EXPECT_EQ(answers.failure, "");
    EXPECT_EQ(answers.recovered, 1);
    EXPECT_EQ(answers.answers, whole.answers) << async;
  }
}

// The control: without retries the same failure ends the engine in the middle of its answers.
TEST(Recovery, WithoutItTheAnswersFail) {
  Model model(tiny(2), {}, faulty(400));
  const Outcome answers = run(model, {.retries = 0});
  EXPECT_EQ(answers.failure, "the rank's cable was pulled");
  EXPECT_NE(answers.answers, run(tiny()).answers);
}

TEST(Recovery, AStepThatFailsAgainAndAgainEndsTheEngine) {
  Model twice(tiny(2), {}, faulty(5, 1)), always(tiny(2), {}, faulty(5, 9));
  EXPECT_EQ(run(twice).answers, run(tiny()).answers);
  EXPECT_EQ(run(always).failure, "the rank's cable was pulled");
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (!std::isdigit(entry.path().filename().string()[0])) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream rest(text.substr(name_end + 2));
    char state;
    pid_t parent = 0;
    rest >> state >> parent;
    if (parent == ::getpid()) found.push_back(std::stoi(text));
  }
  return found;
}

Setting kills_in(int at, Setting setting = {}) {
  setting.before_step = [at](Engine&, int step) {
    if (step == at) ::kill(children().at(0), SIGKILL);
  };
  return setting;
}

TEST(Recovery, AKilledProcessCostsNobodyAnAnswer) {
  const Outcome whole = run(tiny());
  for (const ModelOptions& options : {tiny(2, {}, "mp"), tiny(2, {2}, "mp")})
    for (const char* drafts : {"", R"({"method":"early_exit","exit_layer":1})"}) {
      const auto model = load(options);
      const std::vector<pid_t> before = children();
      const Outcome answers = run(*model, kills_in(20, {.drafts = drafts}));
      EXPECT_EQ(answers.failure, "");
      EXPECT_EQ(answers.answers, whole.answers) << drafts;
      EXPECT_GT(answers.preempted, 0);
      EXPECT_EQ(children().size(), before.size());
      EXPECT_NE(children(), before);
      EXPECT_EQ(run(*model).answers, whole.answers);  // by the others
    }
  // The control.
  const Outcome ended = run(tiny(2, {}, "mp"), kills_in(20, {.retries = 0}));
  EXPECT_NE(ended.failure, "");
  EXPECT_NE(ended.answers, whole.answers);
}

// A process that is stopped counts no longer; looks that find no count are what is counted.
TEST(Recovery, AStoppedProcessIsNamed) {
  SharedMemory memory(pulse_bytes(2));
  const Pulse pulse(memory, 1);
  PulseWatch watch(memory, {"rank 1", "rank 0"});
  std::string said;
  int looks = 0;
  PulseWatch::Time now{};
  for (; said.empty() && looks < 10'000; ++looks) {
    if (looks % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(110));
    said = watch.trouble(now += PulseWatch::kApart);
  }
  EXPECT_EQ(said, "rank 1 gives no sign of life");  // and not rank 0, which does
  EXPECT_EQ(looks, PulseWatch::kLooks + 1);
}

// Ranks meet thousands of times a second. Where other work kept a process from counting for a
// moment, their looks took it for stopped, and the step was computed again.
TEST(Recovery, WhoLooksOftenAccusesNobody) {
  SharedMemory memory(pulse_bytes(2));
  PulseWatch watch(memory, {"rank 1", "rank 0"});
  for (int looks = 0; looks < 10'000; ++looks) ASSERT_EQ(watch.trouble(), "");
}

// Four workers of two stages, on threads; the messages of all but one are the same.
std::vector<std::string> disagreement(int other) {
  auto first = make_inproc_groups(2), second = make_inproc_groups(2);
  const auto one = make_inproc_channel(), two = make_inproc_channel();
  const WorkerLinks links[] = {{first[0].get(), nullptr, one.get()},
                               {first[1].get(), nullptr, two.get()},
                               {second[0].get(), one.get(), nullptr},
                               {second[1].get(), two.get(), nullptr}};
  std::vector<std::string> said(4);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      try {
        expect_agreement({i % 2, 2, i / 2, 2}, links[i], i == other ? "another batch" : "a batch");
      } catch (const Error& error) {
        said[i] = error.what();
      }
    });
  threads.clear();
  return said;
}

TEST(Recovery, WhoWasToldAnotherBatchIsNamed) {
  EXPECT_EQ(disagreement(-1), std::vector<std::string>(4));
  EXPECT_NE(disagreement(1)[0].find("rank 1 of stage 0 on " + host_name()), std::string::npos);
  EXPECT_NE(disagreement(2)[3].find("rank 0 of stage 1"), std::string::npos);
  EXPECT_NE(disagreement(0)[2].find("rank 0 of stage 0"), std::string::npos);
}

// The middle column of comparisons: its bits are those of T, whatever else changes.
TEST(Workers, TheChainDependsOnTheNumberOfRanksAlone) {
  const auto chained = [](int ranks, const char* executor) {
    ModelOptions options = tiny(ranks, {}, executor);
    options.arithmetic = "control-batch";
    return run(options).answers;
  };
  const auto one = chained(1, "threads"), two = chained(2, "threads");
  EXPECT_EQ(chained(2, "mp"), two);
  EXPECT_NE(two, one);
  EXPECT_NE(chained(4, "threads"), two);
  EXPECT_NE(one, run(tiny()).answers);
}

// A worker that is alone, and another engine of the same model, whose blocks are as good as lost.
TEST(Recovery, OfTheOnlyWorker) {
  struct Fault final : Trace {
    void begin_step(std::span<const TracedRow>) override { ++steps; }
    void record(const TracedOp&) override {
      if (steps == 12) throw std::bad_alloc();
    }
    int steps = 0;
  } fault;
  const auto traced = [&](Engine& engine, int) { engine.set_trace(&fault); };
  const Outcome answers = run(tiny(), {.before_step = traced});
  EXPECT_GE(fault.steps, 12);
  EXPECT_EQ(answers.answers, run(tiny()).answers);
  EXPECT_GT(answers.preempted, 0);
}

}  // namespace
}  // namespace invar

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "worker") {
    try {
      invar::serve_worker(std::stoi(argv[2]));
      return 0;
    } catch (const std::exception&) {
      return 1;
    }
  }
  if (invar::join_mpi_job()) {
    invar::serve_mpi_workers();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  invar::end_mpi_job();
  return status;
}
