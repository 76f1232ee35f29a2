// Answers that are held to forms share the work of a step: a token beyond it comes later, with the
// same bits, and whoever is held to no form does not wait.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "engine_answers.h"
#include "model/families/presets.h"
#include "weights/model_files.h"

namespace invar {
namespace {

using namespace testing_engine;

constexpr int kHeld = 12;

// Every kind, and as many again that are held to forms.
std::vector<Request> load() {
  std::vector<Request> requests = all_kinds();
  for (Request& r : requests) r.params.max_tokens = std::min(r.params.max_tokens, 16);
  const auto shared = letters("(aab|bba|abab)*");
  for (int i = 0; i < kHeld; ++i) {
    Request& r = requests.emplace_back(requests[i % 3]);
    r.id = std::ssize(requests);
    r.choice = i;
    r.constraint = i % 2 ? shared : letters("(a{1," + std::to_string(i + 2) + "}b)*");
  }
  return requests;
}

struct Seen {
  std::map<int64_t, Record::Answer> answers;
  int64_t steps = 0, preempted = 0, accepted = 0, samples = 0;
};

// `aborted`: requests that are ended once they have three tokens.
Seen run(Engine& engine, const std::vector<Request>& requests, std::set<int64_t> aborted = {}) {
  Seen seen;
  Record record;
  for (const Request& request : requests) engine.add(request);
  while (engine.step(record)) {
    EXPECT_EQ(engine.check_integrity(), "");
    ++seen.steps;
    seen.preempted += engine.last_step().preempted;
    seen.accepted += engine.last_step().accepted_tokens;
    seen.samples += engine.last_step().samples;
    std::erase_if(aborted, [&](int64_t id) {
      if (record.answers[id].tokens.size() < 3) return false;
      engine.abort(id);
      return true;
    });
  }
  EXPECT_EQ(engine.free_blocks(), engine.num_blocks());
  seen.answers = std::move(record.answers);
  return seen;
}

Seen run(Model& model, EngineOptions options, int64_t work,
         std::unique_ptr<Proposer> proposer = nullptr) {
  options.form_work = work;
  Engine engine(model, options, nullptr, std::move(proposer));
  return run(engine, load());
}

int64_t tokens_of(const Seen& seen) {
  int64_t count = 0;
  for (const auto& [id, answer] : seen.answers) count += std::ssize(answer.tokens);
  return count;
}

class LateTokens : public ::testing::TestWithParam<const char*> {
 protected:
  LateTokens() {
    const DecoderSpec spec = override_spec(preset_spec("tiny"), {.family = GetParam()});
    ThreadPool pool(2);
    make_model(directory_.path(), {spec, {}, {}}, 7, pool);
    model_.emplace(ModelOptions{.model = directory_.path(), .load_format = "auto", .threads = 2});
  }

  TempDirectory directory_;
  std::optional<Model> model_;
};

TEST_P(LateTokens, HaveTheSameBits) {
  const Seen expected = run(*model_, options_of(), Constraint::kMostOfStep);
  EXPECT_EQ(expected.samples, tokens_of(expected));
  for (const std::string& policy : scheduler_names()) {
    const Seen late = run(*model_, options_of(policy), 1);
    EXPECT_EQ(late.answers, expected.answers) << policy;
    EXPECT_EQ(late.samples, expected.samples) << policy;
    EXPECT_GT(late.steps, expected.steps) << policy << ": nothing was late";
  }
  for (const bool is_async : {true, false}) {
    EngineOptions tight = options_of();
    tight.async_scheduling = is_async;
    {
      const Engine roomy(*model_, tight);
      tight.kv_bytes = roomy.cell_bytes() + 14 * roomy.kv_bytes() / roomy.num_blocks();
    }
    const Seen late = run(*model_, tight, 1);
    EXPECT_EQ(late.answers, expected.answers) << is_async;
    EXPECT_GT(late.preempted, 0);
  }
}

TEST_P(LateTokens, EndWalksAlongDrafts) {
  const Seen expected = run(*model_, options_of(), Constraint::kMostOfStep);
  const KnownAnswers known = known_of(load(), expected.answers);
  for (const Script script : {Script::right, Script::trees})
    for (const int64_t work : {1, 40, 400}) {
      const Seen late = run(*model_, options_of(), work,
                            std::make_unique<ScriptedProposer>(script, known, 7, kVocab, 1));
      EXPECT_EQ(late.answers, expected.answers) << work;
      EXPECT_EQ(late.samples, expected.samples) << work;
      EXPECT_GT(late.accepted, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Families, LateTokens,
                         ::testing::Values("llama", "qwen3_next", "falcon_h1"));

Model tiny() {
  return Model({.model = "tiny", .load_format = "dummy:7", .threads = 2});
}

// One that is held to no form, beside many that are: the most tokens of these in one step, and the
// steps that the first one took.
struct Beside {
  int most = 0, steps = 0;
  bool is_fair = true;  // of those that are held none has had two tokens more than another
};

Beside beside(Model& model, int64_t work) {
  EngineOptions options = options_of();
  options.scheduler.max_num_seqs = 32;
  options.scheduler.max_num_batched_tokens = 2048;  // all begin with one step
  options.form_work = work;
  Engine engine(model, options);
  Record record;
  for (const Request& request : load()) {
    if (request.id != 1 && request.id <= std::ssize(all_kinds())) continue;
    engine.add(request);
    if (request.id != 1) record.answers[request.id] = {};
  }
  Beside seen;
  while (record.answers[1].finish == FinishReason::none) {
    const auto held = [&] {
      std::vector<int> sizes;
      for (const auto& [id, answer] : record.answers)
        if (id != 1) sizes.push_back(static_cast<int>(answer.tokens.size()));
      return sizes;
    };
    const auto sum = [](const std::vector<int>& sizes) {
      return std::accumulate(sizes.begin(), sizes.end(), 0);
    };
    const std::vector<int> before = held();
    engine.step(record);
    const std::vector<int> after = held();
    ++seen.steps;
    seen.most = std::max(seen.most, sum(after) - sum(before));
    seen.is_fair &= std::ranges::max(after) <= std::ranges::min(after) + 1;
  }
  return seen;
}

TEST(LateTokensBeside, AnAnswerThatIsHeldToNoFormDoesNotWait) {
  Model model = tiny();
  const Beside bounded = beside(model, 1), control = beside(model, Constraint::kMostOfStep);
  EXPECT_EQ(bounded.most, 1);
  EXPECT_TRUE(bounded.is_fair);
  EXPECT_EQ(bounded.steps, control.steps);
  EXPECT_EQ(control.most, kHeld);  // without a bound all of them have a token in every step
}

TEST(LateTokensBeside, OneThatIsAbortedIsForgotten) {
  Model model = tiny();
  const std::vector<Request> requests = load();
  EngineOptions options = options_of();
  const Seen expected = run(model, options, Constraint::kMostOfStep);
  options.form_work = 1;
  Engine engine(model, options);
  const std::set<int64_t> aborted = {requests.back().id, requests.back().id - 1};
  const Seen late = run(engine, requests, aborted);
  for (const auto& [id, answer] : late.answers) {
    EXPECT_EQ(answer == expected.answers.at(id), !aborted.contains(id)) << id;
    EXPECT_EQ(answer.finish == FinishReason::none, aborted.contains(id)) << id;
  }
}

}  // namespace
}  // namespace invar
