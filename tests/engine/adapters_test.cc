// Requests with adapters: the bits of each depend on its own adapter and on nothing else.
#include <gtest/gtest.h>

#include <filesystem>

#include "../support/adapter_files.h"
#include "../support/fixed_drafts.h"
#include "answers.h"
#include "base/error.h"
#include "speculative/prompt_lookup.h"
#include "weights/lora_adapter.h"

namespace invar {
namespace {

using testing_adapter::Module;
using testing_engine::Record;

std::vector<Module> modules_of_tiny(bool all) {
  std::vector<Module> modules;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    modules.push_back({at + "self_attn.q_proj", 256, 128});
    modules.push_back({at + "self_attn.v_proj", 128, 128});
    if (!all) continue;
    modules.push_back({at + "self_attn.k_proj", 128, 128});
    modules.push_back({at + "self_attn.o_proj", 128, 256});
    modules.push_back({at + "mlp.gate_proj", 512, 128});
    modules.push_back({at + "mlp.up_proj", 512, 128});
    modules.push_back({at + "mlp.down_proj", 128, 512});
  }
  return modules;
}

// An adapter in a directory of its own.
std::shared_ptr<const RequestAdapter> made(const std::string& name, bool all,
                                           const testing_adapter::Adapter& adapter) {
  const auto directory = std::filesystem::path(::testing::TempDir()) /
                         ("adapters_test_" + std::to_string(::getpid()) + name);
  testing_adapter::write(directory, modules_of_tiny(all), adapter);
  const LoraAdapter read(directory.string());
  ThreadPool pool(1);
  return std::make_shared<const RequestAdapter>(RequestAdapter{
      name, directory.string(), static_cast<int32_t>(read.most_rank()), read.digest(pool)});
}

std::shared_ptr<const RequestAdapter> adapter(int number) {
  static const std::vector<std::shared_ptr<const RequestAdapter>> all = {
      nullptr, made("a", true, {.seed = 1, .rank = 16}), made("b", false, {.seed = 2, .rank = 3}),
      made("c", true, {.seed = 3, .rank = 40, .is_bf16 = true})};
  return all[static_cast<size_t>(number)];
}

ModelOptions tiny(const char* arithmetic = "portable") {
  return {.model = "tiny", .load_format = "dummy:7", .arithmetic = arithmetic, .threads = 2};
}

constexpr AdapterLimits kLimits{.most = 8, .most_rank = 64};

EngineOptions options() {
  return {.kv_bytes = 16 << 20, .adapters = kLimits};
}

Request request(int64_t id, int number, int prompt = 90, int answer = 24) {
  Request r;
  r.id = id;
  for (int i = 0; i < prompt; ++i) r.prompt.edit().push_back((5 + i * 7) % 500);
  r.params.max_tokens = answer;
  r.params.temperature = 0.8;
  r.params.seed = 11;
  r.adapter = adapter(number);
  return r;
}

void run_all(Engine& engine, Record& record) {
  while (engine.has_work()) ASSERT_TRUE(engine.step(record));
  EXPECT_EQ(engine.check_integrity(), "");
}

Record::Answer alone(Model& model, Request asked) {
  Engine engine(model, options());
  Record record;
  const int64_t id = asked.id;
  engine.add(std::move(asked));
  run_all(engine, record);
  return record.answers[id];
}

std::vector<Record::Answer> each_alone(Model& model) {
  std::vector<Record::Answer> answers;
  for (int number = 0; number < 4; ++number) answers.push_back(alone(model, request(1, number)));
  for (size_t i = 0; i < answers.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(answers[i].hashes, answers[j].hashes);
  return answers;
}

void expect_same(Engine& engine, const std::vector<Record::Answer>& expected) {
  Record record;
  for (int round = 0; round < 2; ++round)
    for (int number = 0; number < 4; ++number) engine.add(request(10 * round + number, number));
  run_all(engine, record);
  for (const auto& [id, answer] : record.answers)
    EXPECT_EQ(answer, expected[static_cast<size_t>(id % 10)]) << id;
  EXPECT_EQ(record.answers.size(), 8U);
}

TEST(Adapters, AnswersAreTheSameAloneAndAmongOthers) {
  for (const char* arithmetic : {"portable", "hopper", "pair"}) {
    Model model(tiny(arithmetic));
    const auto expected = each_alone(model);
    Engine engine(model, options());
    expect_same(engine, expected);
  }
}

TEST(Adapters, InstructionSetsThreadsAndChunksChangeNoBit) {
  Model model(tiny());
  const auto expected = each_alone(model);
  for (const auto& [set, threads] :
       {std::pair{"scalar", 1}, std::pair{"avx2", 3}, std::pair{"auto", 1}}) {
    ModelOptions other = tiny();
    other.instruction_set = set;
    other.threads = threads;
    Model same(other);
    EngineOptions chunked = options();
    chunked.step_rows = 37;
    chunked.scheduler.max_num_batched_tokens = 37;
    chunked.scheduler.max_num_seqs = 3;
    Engine engine(same, chunked);
    expect_same(engine, expected);
  }
}

TEST(Adapters, RanksAndStagesChangeNoBit) {
  Model model(tiny());
  const auto expected = each_alone(model);
  for (const auto& [ranks, cuts] :
       std::vector<std::pair<int, std::vector<int>>>{{2, {}}, {4, {}}, {1, {2}}, {2, {1, 3}}}) {
    ModelOptions other = tiny();
    other.ranks = ranks;
    other.layer_cuts = cuts;
    Model same(other);
    Engine engine(same, options());
    expect_same(engine, expected);
  }
}

TEST(Adapters, PreemptedRequestsGoOnWithTheirs) {
  Model model(tiny());
  const auto expected = each_alone(model);
  EngineOptions few = options();
  few.block_size = 32;
  few.kv_bytes = 0;
  struct Preempted : Record {
    void on_preempt(int64_t) override { ++count; }
    int count = 0;
  } record;
  few.scheduler.max_model_len = 128;
  few.kv_bytes = 10 * int64_t{4} * 2 * 4 * 32 * 32 * 2;  // 10 blocks
  Engine engine(model, few);
  for (int number = 0; number < 4; ++number) engine.add(request(number, number));
  run_all(engine, record);
  EXPECT_GT(record.count, 0);
  for (const auto& [id, answer] : record.answers)
    EXPECT_EQ(answer, expected[static_cast<size_t>(id)]) << id;
}

TEST(Adapters, MoreThanThereAreSlotsTakeTurns) {
  Model model(tiny());
  const auto expected = each_alone(model);
  EngineOptions one = options();
  one.adapters.most = 1;
  Engine engine(model, one);
  expect_same(engine, expected);
  engine.add(request(50, 1));
  engine.add(request(51, 2));  // waits for a slot
  engine.abort(51);
  engine.abort(50);
  EXPECT_FALSE(engine.has_work());
  expect_same(engine, expected);
}

TEST(Adapters, CachedPrefixesAreSharedByTheSameAdapterOnly) {
  Model model(tiny());
  const auto expected = each_alone(model);
  EngineOptions cached = options();
  cached.block_size = 32;
  Engine engine(model, cached);
  for (int round = 0; round < 2; ++round)
    for (int number = 0; number < 4; ++number) {
      Record record;
      engine.add(request(1, number));
      ASSERT_TRUE(engine.step(record));
      EXPECT_EQ(engine.last_step().cached, round == 0 ? 0 : 64) << number;
      run_all(engine, record);
      EXPECT_EQ(record.answers[1], expected[static_cast<size_t>(number)]);
    }
  // No salt of a client is the one that stands for an adapter.
  Request salted = request(1, 0);
  salted.cache_salt = "+" + to_hex(adapter(1)->digest);
  Record record;
  engine.add(std::move(salted));
  ASSERT_TRUE(engine.step(record));
  EXPECT_EQ(engine.last_step().cached, 0);
  run_all(engine, record);
}

// The control of the test above: blocks of one adapter's prompt under another one's answer.
TEST(Adapters, AForeignPrefixWouldChangeBits) {
  Model model(tiny());
  const auto logits = [&](int of_prefix, int of_rest) {
    Executor executor(model, {.blocks = 4, .block_size = 32, .max_rows = 64, .max_logit_rows = 1});
    std::vector<float> found;
    const auto run = [&](int number, int begin, int end) {
      Batch batch{.sequences = {{.blocks = {0, 1}}}, .logit_rows = {end - begin - 1}};
      if (number > 0) {
        batch.sequences[0].adapter = number;
        batch.adapters = {{number, adapter(number)->rank, adapter(number)->directory,
                           to_hex(adapter(number)->digest)}};
      }
      for (int i = begin; i < end; ++i)
        batch.rows.push_back({.token = 5 + i, .position = i, .sequence = 0});
      ForwardIo io;
      executor.run(batch, io);
      found.assign(io.logits.begin(), io.logits.end());
    };
    run(of_prefix, 0, 32);
    run(of_rest, 32, 40);
    return found;
  };
  EXPECT_EQ(logits(1, 1), logits(1, 1));
  EXPECT_NE(logits(1, 1), logits(3, 1));
  EXPECT_NE(logits(0, 0), logits(1, 0));
}

TEST(Adapters, OfZerosAreTheModelAlone) {
  Model model(tiny());
  Request zero = request(1, 0);
  zero.adapter = made("zero", true, {.seed = 4, .size = 0});
  const auto expected = alone(model, request(1, 0));
  EXPECT_EQ(alone(model, std::move(zero)), expected);
}

TEST(Adapters, DraftsChangeNoBit) {
  Model model(tiny());
  const auto expected = each_alone(model);
  Engine engine(model, options(), nullptr, std::make_unique<PromptLookup>(PromptLookupOptions{}));
  expect_same(engine, expected);
}

// The files are others than those that the request was checked with: it fails, and nobody else.
TEST(Adapters, OneThatChangedOnDiskFailsItsOwnRequest) {
  for (const int ranks : {1, 2}) {
    ModelOptions of_ranks = tiny();
    of_ranks.ranks = ranks;
    Model model(of_ranks);
    const auto expected = alone(model, request(1, 2));
    Engine engine(model, options());
    Request changed = request(2, 0), gone = request(3, 0);
    changed.adapter = made("changed", true, {.seed = 5});
    gone.adapter = made("gone", true, {.seed = 6});
    made("changed", true, {.seed = 7});
    std::filesystem::remove_all(gone.adapter->directory);
    engine.add(request(1, 2));
    engine.add(std::move(changed));
    engine.add(std::move(gone));
    Record record;
    run_all(engine, record);
    EXPECT_EQ(record.answers[1], expected);
    EXPECT_EQ(record.answers[2].finish, FinishReason::failed);
    EXPECT_EQ(record.answers[3].finish, FinishReason::failed);
  }
}

TEST(Adapters, WhatCannotBeComputedIsRefused) {
  Model model(tiny());
  const auto refused = [&](const EngineOptions& with, Request asked) {
    Engine engine(model, with);
    try {
      engine.add(std::move(asked));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused({.kv_bytes = 16 << 20}, request(1, 1)),
            "adapters were not enabled when the engine started");
  EngineOptions low = options();
  low.adapters.most_rank = 8;
  EXPECT_EQ(refused(low, request(1, 1)),
            "the adapter a has rank 16, and at most 8 was allowed when the engine started");
  EngineOptions many = options();
  many.adapters.most_rank = 300;
  EXPECT_THROW(Engine(model, many), UsageError);
  Model control(tiny("control"));
  EXPECT_THROW(Engine(control, options()), UsageError);
}

}  // namespace
}  // namespace invar
