// Engines that answer all kinds of requests, for tests of layers that keep something of their own.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

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

}  // namespace invar::testing_engine
