// Two steps in flight: whatever is planned before its tokens are known, every answer is that of an
// engine that waits for each step, to the bit of its tokens, logits hashes and log-probabilities.
#include <gtest/gtest.h>

#include <random>

#include "answers.h"
#include "base/error.h"

namespace invar {
namespace {

using namespace testing_engine;

// Requests of random kinds. Many end with a stop token, which the engine cannot foresee.
std::vector<Request> random_load(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::vector<Request> requests = all_kinds();
  for (Request& r : requests) r.choice += static_cast<int32_t>(seed);
  while (std::ssize(requests) < count) {
    Request& r = requests.emplace_back();
    r.id = std::ssize(requests);
    const int size = 1 + static_cast<int>(random() % 90), alike = static_cast<int>(random() % 80);
    for (int i = 0; i < size; ++i)
      r.prompt.edit().push_back(i < alike ? 11 + i : static_cast<int32_t>(random() % 499));
    r.params.max_tokens = 1 + static_cast<int>(random() % kAnswer);
    r.params.temperature = random() % 3 ? 0.9 : 0.0;
    r.params.top_p = random() % 2 ? 0.95 : 1.0;
    r.params.seed = random();
    if (random() % 2)
      for (int token = 0; token < 490; token += 12) r.params.stop_token_ids.edit().push_back(token);
    if (random() % 3 == 0) r.params.min_tokens = static_cast<int>(random() % r.params.max_tokens);
    if (random() % 3 == 0) r.params.logprobs = static_cast<int>(random() % 4);
    if (random() % 4 == 0) r.params.prompt_logprobs = 1;
    if (random() % 6 == 0) r.params.presence_penalty = 0.5;
    if (random() % 6 == 0) r.params.logit_bias = {{Overflowing::kToken, 6.0}};
    r.hash_logits = random() % 4;
    if (r.id % 17 == 3) r.pooled = true, r.params.prompt_logprobs = {};
    r.priority = static_cast<int32_t>(random() % 3);
    r.cache_salt = random() % 4 ? "" : "own";
  }
  return requests;
}

EngineOptions options_of(const std::string& policy, bool async) {
  EngineOptions options{.block_size = 32,
                        .kv_bytes = 16 << 20,
                        .prompt_logprobs = true,
                        .async_scheduling = async,
                        .embeddings = true};
  options.scheduler.policy = policy;
  options.scheduler.max_model_len = 256;
  options.scheduler.max_num_batched_tokens = 300;
  options.scheduler.max_num_seqs = 24;
  return options;
}

// Aborts some requests at a certain token, half of them between steps.
struct Sink final : OutputSink {
  explicit Sink(Engine& engine) : engine(engine) {}

  void on_token(const TokenOutput& output) override {
    record.on_token(output);
    if (output.request % 9 != 5 || output.index != 6) return;
    if (output.request % 2)
      engine.abort(output.request);
    else
      later.push_back(output.request);
  }
  void on_prompt(const PromptOutput& output) override { record.on_prompt(output); }
  void on_pooled(const PooledOutput& output) override { pooled[output.request] = output.numbers; }

  Engine& engine;
  Record record;
  std::map<int64_t, std::vector<float>> pooled;
  std::vector<int64_t> later;
};

struct Outcome {
  std::map<int64_t, Record::Answer> answers;
  std::map<int64_t, std::vector<float>> pooled;
  bool operator==(const Outcome&) const = default;
};

struct Tally {
  int64_t steps = 0, discarded = 0, preempted = 0;
};

// Requests arrive one after the other while others are computed.
Outcome outcome_of(Model& model, const EngineOptions& options, std::vector<Request> load,
                   Tally* tally = nullptr) {
  Engine engine(model, options);
  Sink sink(engine);
  size_t next = 0;
  while (next < load.size() || engine.has_work()) {
    for (int i = 0; i < 3 && next < load.size(); ++i, ++next) {
      engine.add(load[next]);
    }
    engine.step(sink);
    for (const int64_t id : std::exchange(sink.later, {})) engine.abort(id);
    EXPECT_EQ(engine.check_integrity(), "");
    if (!tally) continue;
    ++tally->steps;
    tally->discarded += engine.last_step().discarded;
    tally->preempted += engine.last_step().preempted;
  }
  EXPECT_EQ(engine.free_blocks(), engine.num_blocks());
  EXPECT_FALSE(engine.step(sink));
  return {std::move(sink.record.answers), std::move(sink.pooled)};
}

Model tiny(const std::string& arithmetic = "portable") {
  return Model({.model = "tiny", .load_format = "dummy:7", .arithmetic = arithmetic, .threads = 2});
}

class AsyncEngine : public ::testing::TestWithParam<std::string> {};

TEST_P(AsyncEngine, AnswersAsOneThatWaits) {
  Model model = tiny();
  for (const uint32_t seed : {1u, 2u}) {
    const std::vector<Request> load = random_load(seed, 40);
    const Outcome expected = outcome_of(model, options_of(GetParam(), false), load);
    EXPECT_EQ(expected.answers.size() + expected.pooled.size(), load.size());
    Tally tally;
    EXPECT_EQ(outcome_of(model, options_of(GetParam(), true), load, &tally), expected);
    EXPECT_GT(tally.discarded, 0) << "nothing was planned ahead of a late end";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, AsyncEngine, ::testing::ValuesIn(scheduler_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(AsyncEngineLimits, LittleMemoryAndSmallSteps) {
  Model model = tiny();
  const std::vector<Request> load = random_load(3, 40);
  const Outcome expected = outcome_of(model, options_of("sarathi", false), load);
  EngineOptions tight = options_of("sarathi", true);
  tight.kv_bytes = 20 * (64 << 10);
  tight.prefix_caching = false;
  tight.scheduler.max_num_batched_tokens = 40;
  Tally tally;
  EXPECT_EQ(outcome_of(model, tight, load, &tally), expected);
  EXPECT_GT(tally.preempted, 0);
  EXPECT_GT(tally.discarded, 0);
  tight.prefix_caching = true;
  EXPECT_EQ(outcome_of(model, tight, load), expected);
}

// Ranks and stages wait for each step: the same answers.
TEST(AsyncEngineLimits, RanksAndStages) {
  const std::vector<Request> load = random_load(4, 24);
  Model model = tiny();
  const Outcome expected = outcome_of(model, options_of("sarathi", false), load);
  for (const ModelOptions& options :
       {ModelOptions{.model = "tiny", .load_format = "dummy:7", .threads = 2, .ranks = 2},
        ModelOptions{
            .model = "tiny", .load_format = "dummy:7", .threads = 2, .layer_cuts = {1, 3}}}) {
    Model other(options);
    EXPECT_EQ(outcome_of(other, options_of("sarathi", true), load), expected);
  }
}

// A row that is not finite ends its request alone, and the row that was planned behind it says
// nothing.
TEST(AsyncEngineLimits, FailuresAreTheSame) {
  Model model = tiny();
  model.reload(Overflowing(model.spec()));
  const std::vector<Request> load = random_load(5, 40);
  const Outcome expected = outcome_of(model, options_of("sarathi", false), load);
  const auto has_failed = [](const auto& entry) { return !entry.second.error.empty(); };
  EXPECT_GT(std::ranges::count_if(expected.answers, has_failed), 0);
  EXPECT_EQ(outcome_of(model, options_of("sarathi", true), load), expected);
}

// The controls: what the comparisons would see. Answers depend on their stop tokens; under the
// baseline's arithmetic the other rows of a step show.
TEST(AsyncEngineLimits, ALateEndAndOtherBatchesWouldShow) {
  std::vector<Request> load = random_load(1, 40);
  {
    Model model = tiny();
    const Outcome expected = outcome_of(model, options_of("sarathi", false), load);
    for (Request& r : load) r.params.stop_token_ids.edit().clear();
    EXPECT_NE(outcome_of(model, options_of("sarathi", true), load), expected);
  }
  Model model = tiny("control");
  EXPECT_NE(outcome_of(model, options_of("sarathi", true), load),
            outcome_of(model, options_of("sarathi", false), load));
}

// An id may come again at once, though steps in flight still compute who had it.
TEST(AsyncEngineLimits, AnAbortedIdIsFree) {
  Model model = tiny();
  const std::vector<Request> all = all_kinds();
  const Request &first = all[0], &other = all[10];
  Request second = other;
  second.id = first.id;
  const Outcome expected = outcome_of(model, options_of("sarathi", false), {second});
  Engine engine(model, options_of("sarathi", true));
  Record ignored, record;
  engine.add(first);
  for (int i = 0; i < 4; ++i) engine.step(ignored);
  engine.abort(first.id);
  engine.add(second);
  while (engine.step(record)) EXPECT_EQ(engine.check_integrity(), "");
  EXPECT_EQ(record.answers, expected.answers);
  EXPECT_EQ(engine.free_blocks(), engine.num_blocks());
  // Weights may change once nobody is left, whatever was begun.
  Record again;
  engine.add(first);
  for (int i = 0; i < 4; ++i) engine.step(again);
  EXPECT_THROW(engine.expect_no_work(), UsageError);
  engine.abort(first.id);
  engine.expect_no_work();
  EXPECT_FALSE(engine.has_work());
  EXPECT_EQ(engine.free_blocks(), engine.num_blocks());
}

}  // namespace
}  // namespace invar
