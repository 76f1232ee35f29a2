// The engine's transaction: whatever a proposer drafts, every answer is that of plain decoding, to
// the bit of its tokens, logits hashes and log-probabilities.
#include <gtest/gtest.h>

#include "answers.h"
#include "base/error.h"
#include "support/scripted_proposer.h"

namespace invar {
namespace {

using namespace testing_engine;

ModelOptions tiny() {
  return {.model = "tiny", .load_format = "dummy:7", .threads = 2};
}

EngineOptions options_of(const std::string& policy = "sarathi") {
  EngineOptions options{.block_size = 32, .kv_bytes = 16 << 20, .prompt_logprobs = true};
  options.scheduler.policy = policy;
  options.scheduler.max_model_len = 256;
  return options;
}

struct Tally {
  int64_t steps = 0, accepted = 0, preempted = 0;
};

std::map<int64_t, Record::Answer> answers_of(Model& model, const EngineOptions& options,
                                             std::unique_ptr<Proposer> proposer,
                                             Tally* tally = nullptr) {
  Engine engine(model, options, nullptr, std::move(proposer));
  Record record;
  for (Request& request : all_kinds()) engine.add(std::move(request));
  while (engine.step(record)) {
    if (!tally) continue;
    ++tally->steps;
    tally->accepted += engine.last_step().accepted_tokens;
    tally->preempted += engine.last_step().preempted;
  }
  EXPECT_EQ(engine.check_integrity(), "");
  return record.answers;
}

std::unique_ptr<Proposer> scripted(Script script, const KnownAnswers& answers, int nodes,
                                   uint32_t seed = 1) {
  return std::make_unique<ScriptedProposer>(script, answers, nodes, kVocab, seed);
}

// The requests again, each with the first tokens of its answer as given, and what was said of
// these.
std::vector<Request> going_on(const std::map<int64_t, Record::Answer>& whole, size_t count,
                              Record& record) {
  std::vector<Request> all = all_kinds();
  for (Request& request : all) {
    const Record::Answer& answer = whole.at(request.id);
    const size_t stand = std::min(count, answer.tokens.size() - 1);
    if (stand == 0) continue;
    const auto first = [stand](const auto& list) {
      return std::decay_t<decltype(list)>(list.begin(), list.begin() + static_cast<int64_t>(stand));
    };
    record.answers[request.id] = {.tokens = first(answer.tokens),
                                  .hashes = first(answer.hashes),
                                  .logprobs = first(answer.logprobs),
                                  .prompt_logprobs = answer.prompt_logprobs};
    request.begun = first(answer.tokens);
    request.begun_hash = answer.hashes[stand - 1];
  }
  return all;
}

TEST(Speculation, AnAnswerGoesOnBehindTokensThatStand) {
  Model model(tiny());
  const auto whole = answers_of(model, options_of(), nullptr);
  const KnownAnswers answers = known_of(all_kinds(), whole);
  for (const bool drafts : {false, true})
    for (const size_t stand : {1, 2, 6, 39}) {
      Engine engine(model, options_of(), nullptr,
                    drafts ? scripted(Script::right, answers, 4) : nullptr);
      Record record;
      for (Request& request : going_on(whole, stand, record)) engine.add(std::move(request));
      while (engine.step(record)) continue;
      EXPECT_EQ(record.answers, whole) << stand << " tokens, drafts " << drafts;
    }
  // The control: another token stands.
  Engine engine(model, options_of(), nullptr);
  Record record;
  Request other = going_on(whole, 6, record)[1];
  other.begun.edit()[2] = (other.begun[2] + 1) % kVocab;
  const int64_t id = other.id;
  engine.add(std::move(other));
  while (engine.step(record)) continue;
  EXPECT_NE(record.answers.at(id), whole.at(id));
  Request full = all_kinds()[1];
  full.begun = std::vector<int32_t>(static_cast<size_t>(full.params.max_tokens), 5);
  EXPECT_THROW(engine.add(std::move(full)), UsageError);
}

TEST(Speculation, NoDraftShowsInAnAnswer) {
  Model model(tiny());
  const auto plain = answers_of(model, options_of(), nullptr);
  EXPECT_EQ(plain.size(), all_kinds().size());
  const KnownAnswers answers = known_of(all_kinds(), plain);
  for (const Script script : {Script::right, Script::wrong, Script::until_last, Script::trees})
    for (const int nodes : {1, 5, 17}) {
      Tally tally;
      EXPECT_EQ(answers_of(model, options_of(), scripted(script, answers, nodes), &tally), plain)
          << static_cast<int>(script) << " " << nodes;
      EXPECT_EQ(tally.accepted > 0,
                script != Script::wrong && (script != Script::until_last || nodes > 1));
      if (script == Script::right && nodes == 17) {
        EXPECT_LT(tally.steps, 12);
      }
    }
}

TEST(Speculation, NorDoesItBesidePoliciesRanksStagesAndLittleMemory) {
  Model model(tiny());
  const auto plain = answers_of(model, options_of(), nullptr);
  const KnownAnswers answers = known_of(all_kinds(), plain);
  for (const std::string& policy : scheduler_names())
    EXPECT_EQ(answers_of(model, options_of(policy), scripted(Script::trees, answers, 8)), plain)
        << policy;
  EngineOptions small = options_of();
  small.scheduler.max_num_batched_tokens = 24;
  small.scheduler.max_num_seqs = 8;
  small.block_size = 64;
  EXPECT_EQ(answers_of(model, small, scripted(Script::trees, answers, 12)), plain);
  EngineOptions tight = options_of();  // they take each other's blocks
  tight.kv_bytes = 28 * (64 << 10);
  Tally tally;
  EXPECT_EQ(answers_of(model, tight, scripted(Script::trees, answers, 6), &tally), plain);
  EXPECT_GT(tally.preempted, 0);
  EngineOptions ahead = options_of();  // every step is begun before the sink hears of the last
  ahead.async_scheduling = true;
  EXPECT_EQ(answers_of(model, ahead, scripted(Script::trees, answers, 8)), plain);
  EXPECT_EQ(answers_of(model, ahead, nullptr), plain);
  for (const ModelOptions& options :
       {ModelOptions{.model = "tiny", .load_format = "dummy:7", .threads = 2, .ranks = 2},
        ModelOptions{.model = "tiny", .load_format = "dummy:7", .threads = 2, .layer_cuts = {1, 3}},
        ModelOptions{
            .model = "tiny", .load_format = "dummy:7", .instruction_set = "avx2", .threads = 1}}) {
    Model other(options);
    EXPECT_EQ(answers_of(other, options_of(), scripted(Script::trees, answers, 8, 5)), plain);
  }
}

// A request that fits alone always ends: the context of one sequence comes before the side branches
// of drafts, which are cut to their trunks where there is no memory for them.
TEST(Speculation, ACacheOfOneContextIsEnoughForDraftsThatBranch) {
  Model model(tiny());
  const auto plain = answers_of(model, options_of(), nullptr);
  const KnownAnswers answers = known_of(all_kinds(), plain);
  EngineOptions one = options_of();
  one.kv_bytes = Engine(model, one).kv_bytes() / Engine(model, one).num_blocks() * (256 / 32);
  for (const std::string& policy : scheduler_names()) {
    one.scheduler.policy = policy;
    for (const bool fits_itself : {false, true}) {
      one.fit_context = fits_itself;
      one.scheduler.max_model_len = fits_itself ? 0 : 256;
      Engine engine(model, one, nullptr, scripted(Script::trees, answers, 17));
      EXPECT_EQ(engine.num_blocks(), fits_itself ? 4 : 8);
      EXPECT_EQ(engine.max_model_len(), fits_itself ? 128 : 256);
      if (fits_itself) continue;
      Record record;
      for (Request& request : all_kinds()) engine.add(std::move(request));
      while (engine.step(record)) continue;
      EXPECT_EQ(record.answers, plain) << policy;
    }
  }
  // The control: one block less than the context needs is refused.
  one.fit_context = false;
  one.scheduler.max_model_len = 256;
  one.kv_bytes -= 1;
  EXPECT_THROW(Engine(model, one, nullptr, scripted(Script::trees, answers, 17)), Error);
}

// What is left in the prefix cache of an answer, whose drafts overshot it or whose row ran ahead of
// its end: whole blocks of computed slots. An answer that goes on from there has the bits of one
// that found nothing. The answers end in every slot of a block.
TEST(Speculation, NorDoesItInTheBlocksOfAnAnswerThatIsGoneOnFrom) {
  Model model(tiny());
  const auto asked = [](std::vector<int32_t> prompt, int most) {
    Request r{.id = 1, .prompt = std::move(prompt)};
    r.params.max_tokens = most;
    r.params.temperature = 0.8;
    r.params.seed = 4;
    return r;
  };
  std::vector<int32_t> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back(5 + 7 * i);
  const auto run = [](Engine& engine, Request request, int* cached = nullptr) {
    Record record;
    engine.add(std::move(request));
    EXPECT_TRUE(engine.step(record));
    if (cached) *cached = engine.last_step().cached;
    while (engine.step(record)) {
    }
    EXPECT_EQ(engine.check_integrity(), "");
    return record.answers[1];
  };
  EngineOptions uncached = options_of();
  uncached.prefix_caching = false;
  Engine plain(model, uncached);
  std::vector<int32_t> whole = run(plain, asked(prompt, 60)).tokens;
  whole.insert(whole.begin(), prompt.begin(), prompt.end());
  const KnownAnswers known = {{1, whole}};
  EngineOptions ahead = options_of();
  ahead.async_scheduling = true;
  Engine drafting(model, options_of(), nullptr, scripted(Script::right, known, 7));
  Engine branching(model, options_of(), nullptr, scripted(Script::trees, known, 9));
  Engine running_ahead(model, ahead);
  int tried = 0;
  for (int size = 40; size <= 73; ++size) {
    const std::vector<int32_t> first(whole.begin(), whole.begin() + size);
    if (std::find(first.begin() + 20, first.end() - 1, first.back()) != first.end() - 1)
      continue;  // it would end there
    ++tried;
    std::vector<int32_t> second = first;
    second.insert(second.end(), {9, 9, 9});
    const Record::Answer expected = run(plain, asked(second, 5));
    for (Engine* engine : {&drafting, &branching, &running_ahead}) {
      engine->clear_prefix_cache();
      Request request = asked(prompt, 100);
      request.params.stop_token_ids = {first.back()};
      const Record::Answer answer = run(*engine, std::move(request));
      ASSERT_EQ(answer.tokens, std::vector(first.begin() + 20, first.end()));
      int cached = 0;
      EXPECT_EQ(run(*engine, asked(second, 5), &cached), expected) << size;
      EXPECT_EQ(cached, (size - 1) / 32 * 32) << "the last token was not computed";
    }
  }
  EXPECT_GT(tried, 24);
}

// The control of both: under the baseline's arithmetic the same drafts change bits.
TEST(Speculation, UnderTheBaselineDraftsShow) {
  ModelOptions options = tiny();
  options.arithmetic = "control";
  Model model(options);
  const auto plain = answers_of(model, options_of(), nullptr);
  EXPECT_NE(
      answers_of(model, options_of(), scripted(Script::trees, known_of(all_kinds(), plain), 17)),
      plain);
}

// Acceptance by rejection: greedy answers stay, sampled ones depend on the drafts and on nothing
// else, and the identity says so.
TEST(Speculation, ByRejectionAnswersDependOnTheDrafts) {
  Model model(tiny());
  const auto plain = answers_of(model, options_of(), nullptr);
  const KnownAnswers answers = known_of(all_kinds(), plain);
  ModelOptions options = tiny();
  options.rejection = true;
  Model rejecting(options);
  EXPECT_EQ(rejecting.identity(), model.identity() + "/rejection");
  Tally tally;
  const auto first =
      answers_of(rejecting, options_of(), scripted(Script::trees, answers, 8), &tally);
  EXPECT_GT(tally.accepted, 0);
  EXPECT_EQ(answers_of(rejecting, options_of(), scripted(Script::trees, answers, 8)), first);
  EXPECT_NE(answers_of(rejecting, options_of(), scripted(Script::right, answers, 8)), first);
  for (const Request& request : all_kinds()) {
    if (request.params.is_greedy()) {
      EXPECT_EQ(first.at(request.id), plain.at(request.id));
    }
  }
}

// Drafts the token that overflows, again and again.
class Poisoner final : public Proposer {
 public:
  std::string_view name() const override { return "poisoner"; }
  int32_t most_nodes() const override { return 4; }
  bool makes_branches() const override { return true; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].most == 4)
        trees[i] = {{Overflowing::kToken, -1}, {3, 0}, {4, -1}, {Overflowing::kToken, 2}};
  }
};

TEST(Speculation, ADraftThatIsNotFiniteFailsNobody) {
  Model model(tiny());
  model.reload(Overflowing(model.spec()));
  const auto plain = answers_of(model, options_of(), nullptr);
  const auto drafted = answers_of(model, options_of(), std::make_unique<Poisoner>());
  EXPECT_EQ(drafted, plain);
  // Whoever samples the token fails, with drafts or without.
  for (const int64_t id : {1, 2, 3}) EXPECT_EQ(plain.at(id).finish, FinishReason::length);
  // The control: as a prompt's token it fails its request.
  Engine engine(model, options_of(), nullptr, std::make_unique<Poisoner>());
  Record record;
  Request request = all_kinds()[0];
  request.prompt.edit()[2] = Overflowing::kToken;
  engine.add(request);
  while (engine.step(record)) {
  }
  EXPECT_EQ(record.answers[request.id].error, SamplingStage::kNotFinite);
}

// A sink that has enough in the middle of what a step accepted hears nothing more.
TEST(Speculation, WhoIsAbortedInTheMiddleOfAStepIsSilent) {
  struct Stopper final : OutputSink {
    void on_token(const TokenOutput& output) override {
      ++tokens;
      if (output.index == 3) engine->abort(output.request);
    }
    Engine* engine = nullptr;
    int tokens = 0;
  };
  Model model(tiny());
  const KnownAnswers answers = known_of(all_kinds(), answers_of(model, options_of(), nullptr));
  for (const bool ahead : {false, true})
    for (const int nodes : {1, 17}) {
      EngineOptions options = options_of();
      options.async_scheduling = ahead;
      Engine engine(model, options, nullptr, scripted(Script::right, answers, nodes));
      Stopper stopper;
      stopper.engine = &engine;
      engine.add(all_kinds()[0]);
      while (engine.step(stopper)) {
      }
      EXPECT_EQ(stopper.tokens, 4);
      EXPECT_FALSE(engine.has_work());
      EXPECT_EQ(engine.free_blocks(), engine.num_blocks());
      EXPECT_EQ(engine.check_integrity(), "");
    }
}

// One that waits in a step that was begun takes nothing with it, and new weights may come at once.
TEST(Speculation, WhoIsAbortedInAStepThatWasBegunIsForgotten) {
  Model model(tiny());
  EngineOptions options = options_of();
  options.async_scheduling = true;
  Engine engine(model, options);
  Record record;
  engine.add(all_kinds()[0]);
  for (int i = 0; i < 3; ++i) engine.step(record);
  const size_t told = record.answers[1].tokens.size();
  engine.abort(1);
  engine.take_weights(*dummy_weights(model.spec(), 7));
  EXPECT_FALSE(engine.has_work());
  EXPECT_FALSE(engine.step(record));
  EXPECT_EQ(record.answers[1].tokens.size(), told);
  EXPECT_EQ(engine.free_blocks(), engine.num_blocks());
  EXPECT_EQ(engine.check_integrity(), "");
}

}  // namespace
}  // namespace invar
