// A request that fits alone always ends, with the bits that it has alone: random policies,
// drafters, arrivals and ends in caches that hold one context and little more. INVAR_FULL_TESTS:
// ten times as many schedules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <random>

#include "../engine/answers.h"
#include "../support/fixed_drafts.h"
#include "../weights/model_files.h"
#include "base/error.h"
#include "drafters/make_proposer.h"
#include "kv/cell_placement.h"
#include "kv/sequence_store.h"
#include "model/families/presets.h"
#include "scheduler/policies.h"

namespace invar {
namespace {

using namespace testing_engine;

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  int below(int end) { return static_cast<int>(random_() % static_cast<uint32_t>(end)); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename List>
  const auto& of(const List& list) {
    return list[static_cast<size_t>(below(static_cast<int>(std::ssize(list))))];
  }

 private:
  std::mt19937 random_;
};

int tokens_of(const Request& request) {
  return static_cast<int>(std::ssize(request.prompt)) + request.params.max_tokens;
}

// Prompts of every length up to six blocks; half of them begin alike.
std::vector<Request> make_requests() {
  Draw draw(5);
  std::vector<Request> requests;
  for (int id = 1; id <= 48; ++id) {
    Request& r = requests.emplace_back();
    r.id = id;
    r.params.max_tokens = 1 + draw.below(32);
    const int prompt = 1 + draw.below(id % 2 ? 40 : 192 - r.params.max_tokens);
    const int alike = id % 4 < 2 ? draw.below(prompt + 1) : 0;
    for (int i = 0; i < prompt; ++i)
      r.prompt.edit().push_back(i < alike ? (5 + i * 7) % 500 : draw.below(kVocab));
    r.params.temperature = id % 3 ? 0.8 : 0;
    r.params.seed = static_cast<uint64_t>(id);
    if (id % 8 == 1) r.constraint = letters("(a|b)*");
    if (id % 8 == 2) r.params.prompt_logprobs = 1;
    if (id % 8 == 3) r.params.frequency_penalty = 0.5;
    if (id % 8 == 4) r.cache_salt = std::string("other");
  }
  return requests;
}

// A model, and what it says to each request where there is room for one after the other.
struct Target {
  Target(std::vector<std::string> configs, const SpecOverrides& shape, std::vector<int> cuts = {})
      : configs(std::move(configs)), requests(make_requests()) {
    ThreadPool pool(1);
    make_model(directory.path(), {override_spec(preset_spec("tiny"), shape), {}, {}}, 7, pool);
    model.emplace(
        ModelOptions{.model = directory.path(), .threads = 1, .layer_cuts = std::move(cuts)});
    EngineOptions options{.kv_bytes = 64 << 20, .prefix_caching = false, .prompt_logprobs = true};
    options.scheduler.max_num_seqs = 1;
    options.scheduler.max_model_len = 256;
    Engine engine(*model, options);
    Record record;
    for (const Request& request : requests) engine.add(request);
    while (engine.step(record)) continue;
    alone = record.answers;
    known = known_of(requests, alone);
  }

  TempDirectory directory;
  std::vector<std::string> configs;  // of drafters, beside those that know the answers
  std::optional<Model> model;
  std::vector<Request> requests;
  std::map<int64_t, Record::Answer> alone;
  KnownAnswers known;
};

const SpecOverrides kSmall{.hidden = 64, .layers = 3, .heads = 2, .kv_heads = 1, .ffn = 64};

struct Tally {
  int64_t answers = 0, preempted = 0, cached = 0, accepted = 0, aborted = 0, cut = 0, kept = 0;
};

// A case, drawn by its number.
class Schedule {
 public:
  Schedule(Target& target, uint32_t seed) : target_(target), draw_(seed) {
    draw_options();
    what_ = draw_.one_in(4) ? "" : draw_.one_in(2) ? "a script" : draw_.of(target.configs);
    script_ = draw_.of(kScripts);
    nodes_ = draw_.of(kNodes);
    adapts_ = draw_.one_in(4);
    has_little_ = draw_.one_in(2);
  }

  // Returns the fault, or nothing; `most`: steps, 0: enough of them.
  std::string run(Tally& tally, int64_t most = 0) {
    try {
      draw_memory();
      std::string said;
      engine_ = quietly_made(said);
      tally.cut += said.find("cut to their trunks") != said.npos;
      tally.kept += said.find("are kept for side branches") != said.npos;
      draw_requests();
      return answer_all(tally, most > 0 ? most : 1000 + 50 * tokens_);
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::string text() const {
    const SchedulerOptions& s = options_.scheduler;
    return fmt::format(
        "{}, {} blocks of {} for a context of {}, {} sequences, {} rows, drafts of {} (script {}, "
        "{} nodes)",
        s.policy, blocks_, options_.block_size, s.max_model_len, s.max_num_seqs,
        s.max_num_batched_tokens, what_, static_cast<int>(script_), nodes_);
  }

 private:
  static constexpr Script kScripts[] = {Script::right, Script::wrong, Script::until_last,
                                        Script::trees, Script::trees};
  static constexpr int kNodes[] = {1, 4, 9, 17};

  void draw_options() {
    options_.block_size = draw_.one_in(3) ? 64 : 32;
    options_.prompt_logprobs = true;
    options_.prefix_caching = !draw_.one_in(3);
    if (draw_.one_in(2)) options_.async_scheduling = draw_.one_in(2);
    if (draw_.one_in(3)) options_.form_work = 1 + draw_.below(50);
    SchedulerOptions& s = options_.scheduler;
    s.policy = draw_.of(scheduler_names());
    s.max_model_len =
        draw_.one_in(2) ? tokens_of(draw_.of(target_.requests)) : 8 + draw_.below(200);
    s.max_num_seqs = 1 + draw_.below(10);
    s.max_num_batched_tokens = s.max_num_seqs + draw_.below(100);
    if (has_states(target_.model->spec())) s.max_num_batched_tokens += kBoundary;
    if (computes_whole_prompts(s.policy)) s.max_num_batched_tokens += s.max_model_len;
    if (draw_.one_in(3)) options_.step_rows = 1 + draw_.below(s.max_num_batched_tokens);
    s.urgent_take_slots = draw_.one_in(4);
    if (draw_.one_in(5)) s.chunk_schedule = ChunkSchedule{.low = 1 + draw_.below(40), .high = 64};
  }

  // The blocks of one context, and at times a few more.
  void draw_memory() {
    const int context = options_.scheduler.max_model_len;
    blocks_ = (context + options_.block_size - 1) / options_.block_size;
    if (draw_.one_in(2)) blocks_ += 1 + draw_.below(40) * draw_.below(2);
    const DecoderSpec& spec = target_.model->spec();
    options_.kv_bytes = 64 << 20;
    if (has_states(spec)) {
      std::string said;
      options_.kv_bytes = quietly_made(said)->cell_bytes();
    } else {
      options_.kv_bytes = 0;
    }
    options_.kv_bytes += blocks_ * SequenceStore::block_bytes(states_of(spec), options_.block_size,
                                                              target_.model->arithmetic().cache);
    if (!draw_.one_in(6) || computes_whole_prompts(options_.scheduler.policy)) return;
    options_.fit_context = true;  // whatever that is then
    options_.scheduler.max_model_len = 0;
  }

  std::unique_ptr<Proposer> make_drafter() const {
    if (what_.empty()) return nullptr;
    if (what_ == "a script")
      return std::make_unique<ScriptedProposer>(script_, target_.known, nodes_, kVocab);
    SpeculativeConfig config = fixed_drafts(what_);
    config.adaptive = adapts_;
    return make_proposer(config, *target_.model,
                         {.max_sequences = options_.scheduler.max_num_seqs,
                          .context = options_.scheduler.max_model_len,
                          .kv_bytes = has_little_ ? 1 : 1 << 20,
                          .catch_up_rows = 80});
  }

  std::unique_ptr<Engine> quietly_made(std::string& said) const {
    testing::internal::CaptureStderr();
    try {
      auto engine = std::make_unique<Engine>(*target_.model, options_, nullptr, make_drafter());
      said = testing::internal::GetCapturedStderr();
      return engine;
    } catch (const Error&) {
      testing::internal::GetCapturedStderr();
      throw;
    }
  }

  void draw_requests() {
    std::vector<Request> fitting = target_.requests;
    std::erase_if(fitting,
                  [&](const Request& r) { return tokens_of(r) > engine_->max_model_len(); });
    for (int count = 1 + draw_.below(12); count > 0 && !fitting.empty(); --count) {
      const int at = draw_.below(static_cast<int>(std::ssize(fitting)));
      fitting[static_cast<size_t>(at)].priority = draw_.below(4);
      tokens_ += tokens_of(fitting[static_cast<size_t>(at)]);
      coming_.push_back(std::move(fitting[static_cast<size_t>(at)]));
      fitting.erase(fitting.begin() + at);
    }
  }

  // They come one after the other, and some are ended before their time.
  std::string answer_all(Tally& tally, int64_t most) {
    Record record;
    std::vector<int64_t> asked;
    for (int64_t step = 0; !coming_.empty() || engine_->has_work(); ++step) {
      if (step == most) return fmt::format("{} steps are no end", step);
      while (!coming_.empty() && (!engine_->has_work() || draw_.one_in(2))) {
        asked.push_back(coming_.front().id);
        engine_->add(std::move(coming_.front()));
        coming_.pop_front();
      }
      if (!asked.empty() && draw_.one_in(60)) {
        const auto at = asked.begin() + draw_.below(static_cast<int>(std::ssize(asked)));
        engine_->abort(*at);
        asked.erase(at);
        ++tally.aborted;
      }
      if (!engine_->step(record)) continue;
      tally.preempted += engine_->last_step().preempted;
      tally.cached += engine_->last_step().cached;
      tally.accepted += engine_->last_step().accepted_tokens;
    }
    tally.answers += std::ssize(asked);
    for (const int64_t id : asked)
      if (!(record.answers[id] == target_.alone.at(id)))
        return fmt::format("the answer {} is another one: {}", id, record.answers[id].error);
    return engine_->check_integrity();
  }

  Target& target_;
  Draw draw_;
  EngineOptions options_;
  std::string what_;
  Script script_;
  int nodes_ = 0, blocks_ = 0;
  bool adapts_ = false;      // drafts are as long as pays, by the clock
  bool has_little_ = false;  // its drafter's cache holds one context, too
  int64_t tokens_ = 0;
  std::deque<Request> coming_;
  std::unique_ptr<Engine> engine_;
};

Tally run_all(Target& target, int schedules) {
  if (std::getenv("INVAR_FULL_TESTS")) schedules *= 10;
  Tally tally;
  for (int seed = 0; seed < schedules; ++seed) {
    Schedule schedule(target, static_cast<uint32_t>(seed));
    EXPECT_EQ(schedule.run(tally), "") << seed << ": " << schedule.text();
    if (testing::Test::HasFailure()) break;
  }
  fmt::print(
      "{} schedules: {} answers, {} preempted, {} cached, {} accepted, {} aborted, {} cut, "
      "{} kept\n",
      schedules, tally.answers, tally.preempted, tally.cached, tally.accepted, tally.aborted,
      tally.cut, tally.kept);
  return tally;
}

constexpr const char* kLookups[] = {
    R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})",
    R"({"method":"suffix"})", R"({"method":"lookahead"})",
    R"({"method":"lookahead","lookahead_window":2,"lookahead_ngram":3,"lookahead_guesses":2})"};

Target attention() {
  std::vector<std::string> configs(std::begin(kLookups), std::end(kLookups));
  for (const char* config : {R"({"method":"draft_model","model":"dummy:7"})",
                             R"({"method":"draft_model","model":"dummy:1",
                                 "speculative_token_tree":"[(0,),(1,),(0,0),(0,1),(1,0)]"})",
                             R"({"method":"early_exit","num_speculative_tokens":3})",
                             R"({"method":"early_exit",
                                 "speculative_token_tree":"[(0,),(1,),(0,0)]"})",
                             R"({"method":"swift","skip_layers":[1]})"})
    configs.emplace_back(config);
  return {std::move(configs), kSmall};
}

TEST(LittleCache, WhatFitsAloneEnds) {
  Target target = attention();
  const Tally tally = run_all(target, 1500);
  EXPECT_GT(tally.preempted, 500);
  EXPECT_GT(tally.cached, 500);
  EXPECT_GT(tally.accepted, 500);
  EXPECT_GT(tally.aborted, 50);
  EXPECT_GT(tally.cut, 50);
  EXPECT_GT(tally.kept, 50);
}

TEST(LittleCache, WhatFitsAloneEndsWhereLayersHaveStates) {
  Target target{{kLookups[0], R"({"method":"draft_model","model":"dummy:7"})"},
                {.family = "falcon_h1", .hidden = 64, .layers = 2}};
  const Tally tally = run_all(target, 150);
  EXPECT_GT(tally.preempted, 50);
  EXPECT_GT(tally.accepted, 50);
}

TEST(LittleCache, WhatFitsAloneEndsInStages) {
  Target target{{kLookups[0], kLookups[2]}, kSmall, {1}};
  const Tally tally = run_all(target, 150);
  EXPECT_GT(tally.preempted, 50);
  EXPECT_GT(tally.accepted, 50);
}

// The controls: steps that do not come to an end, and an answer that is another one.
TEST(LittleCache, NoticesWhatDoesNotEndAndOtherBits) {
  Target target = attention();
  Tally tally;
  const auto wrong = [&](int64_t most) {
    int count = 0;
    for (uint32_t seed = 0; seed < 20; ++seed)
      count += !Schedule(target, seed).run(tally, most).empty();
    return count;
  };
  EXPECT_EQ(wrong(0), 0);
  EXPECT_GT(wrong(2), 10);
  for (auto& [id, answer] : target.alone) ++answer.tokens.back();
  EXPECT_GT(wrong(0), 10);
}

}  // namespace
}  // namespace invar
