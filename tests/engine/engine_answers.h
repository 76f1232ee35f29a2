// Engines that answer all kinds of requests, for tests of layers that keep something of their own.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "answers.h"

namespace invar::testing_engine {

inline EngineOptions options_of(const std::string& policy = "sarathi") {
  EngineOptions options{.block_size = 32, .kv_bytes = 64 << 20, .prompt_logprobs = true};
  options.scheduler.policy = policy;
  options.scheduler.max_model_len = 256;
  options.scheduler.max_num_seqs = 8;
  return options;
}

struct Tally {
  int64_t accepted = 0, preempted = 0, cached = 0;
};

inline std::map<int64_t, Record::Answer> answers_of(Engine& engine, Tally* tally = nullptr) {
  Record record;
  for (Request& request : all_kinds()) engine.add(std::move(request));
  while (engine.step(record)) {
    if (!tally) continue;
    tally->accepted += engine.last_step().accepted_tokens;
    tally->preempted += engine.last_step().preempted;
    tally->cached += engine.last_step().cached;
  }
  EXPECT_EQ(engine.check_integrity(), "");
  return record.answers;
}

inline std::map<int64_t, Record::Answer> answers_of(Model& model, const EngineOptions& options,
                                                    std::unique_ptr<Proposer> proposer = nullptr,
                                                    Tally* tally = nullptr) {
  Engine engine(model, options, nullptr, std::move(proposer));
  return answers_of(engine, tally);
}

// One after the other, of whole prompts.
inline std::map<int64_t, Record::Answer> alone(Model& model) {
  EngineOptions options = options_of("fcfs");
  options.scheduler.max_num_seqs = 1;
  options.prefix_caching = false;
  return answers_of(model, options);
}

// Drafts that are right, wrong and both change no answer.
inline void expect_no_draft_shows(Model& model) {
  const auto expected = alone(model);
  const KnownAnswers known = known_of(all_kinds(), expected);
  for (const Script script : {Script::right, Script::wrong, Script::until_last, Script::trees})
    for (const int nodes : {1, 5, 17}) {
      Tally tally;
      EXPECT_EQ(
          answers_of(model, options_of(),
                     std::make_unique<ScriptedProposer>(script, known, nodes, kVocab, 1), &tally),
          expected)
          << static_cast<int>(script) << " " << nodes;
      EXPECT_EQ(tally.accepted > 0,
                script != Script::wrong && (script != Script::until_last || nodes > 1));
    }
}

// So little memory that sequences are preempted changes no answer.
inline void expect_no_preemption_shows(Model& model) {
  EngineOptions tight = options_of();
  {
    const Engine roomy(model, tight);
    tight.kv_bytes = roomy.cell_bytes() + 14 * roomy.kv_bytes() / roomy.num_blocks();
  }
  Tally tally;
  EXPECT_EQ(answers_of(model, tight, nullptr, &tally), alone(model));
  EXPECT_GT(tally.preempted, 0);
}

// Neither do ranks, threads and instruction sets, nor `more`.
using Change = std::function<void(ModelOptions&)>;
inline void expect_same_answers(const ModelOptions& options, const std::vector<Change>& more = {}) {
  Model model(options);
  const auto expected = alone(model);
  std::vector<Change> changes = {[](ModelOptions& o) { o.ranks = 2; },
                                 [](ModelOptions& o) { o.threads = 1; },
                                 [](ModelOptions& o) { o.instruction_set = "avx2"; },
                                 [](ModelOptions& o) { o.instruction_set = "scalar"; }};
  changes.insert(changes.end(), more.begin(), more.end());
  for (size_t i = 0; i < changes.size(); ++i) {
    ModelOptions changed = options;
    changes[i](changed);
    Model other(changed);
    EXPECT_EQ(answers_of(other, options_of()), expected) << "change " << i;
  }
}

}  // namespace invar::testing_engine
