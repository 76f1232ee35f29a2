// The engine as its users see it: requests in, tokens out, blocks back, no memory taken on the way.
#include "engine/engine.h"
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <new>

#include "base/error.h"
#include "sampling/grammar/languages.h"
#include "support/count_allocations.h"

namespace invar {
namespace {

ModelOptions tiny() {
  return {.model = "tiny", .load_format = "dummy:7", .threads = 2};
}

Request request(int64_t id, int prompt, int answer, int first_token = 5) {
  Request r{.id = id};
  for (int i = 0; i < prompt; ++i) r.prompt.edit().push_back((first_token + i * 7) % 500);
  r.params.max_tokens = answer;
  r.params.temperature = id % 2 ? 0.8 : 0.0;
  r.params.top_p = id % 2 ? 0.9 : 1.0;
  r.params.top_k = id % 4 == 3 ? 40 : 0;
  r.params.seed = static_cast<uint64_t>(id);
  return r;
}

struct Answers final : OutputSink {
  void on_token(const TokenOutput& output) override {
    hash[output.request] = output.logits_hash;
    finish[output.request] = output.finish;
    ++tokens[output.request];
  }
  std::map<int64_t, Digest> hash;
  std::map<int64_t, FinishReason> finish;
  std::map<int64_t, int> tokens;
};

// Takes no memory itself.
struct Counter final : OutputSink {
  void on_token(const TokenOutput&) override { ++tokens; }
  int tokens = 0;
};

void run_all(Engine& engine, OutputSink& sink) {
  while (engine.step(sink)) {
  }
}

// What the tests of warm steps would see. Called by name: a new that nobody needs may be left out.
TEST(Allocations, AreCounted) {
  const int64_t before = allocation_count();
  void* volatile of_cpp = ::operator new(10);
  void* volatile aligned = ::operator new (128, std::align_val_t{64});
  void* volatile of_c = std::malloc(10);
  const int64_t taken = allocation_count() - before;
  std::free(of_c);
  ::operator delete (aligned, std::align_val_t{64});
  ::operator delete(of_cpp);
  EXPECT_EQ(taken, 3);
}

TEST(Engine, AWarmStepTakesNoMemory) {
  for (const char* set : {"avx2", "auto"}) {
    ModelOptions options = tiny();
    options.instruction_set = set;
    Model model(options);
    Engine engine(model, {.kv_bytes = 16 << 20});
    Counter counter;
    // The first round grows what has to grow; the second one meets the same sizes again.
    for (int round = 0; round < 2; ++round) {
      for (int id = 0; id < 8; ++id) engine.add(request(10 * round + id, 20 + 9 * id, 70));
      for (int i = 0; i < 8; ++i) engine.step(counter);
      const int64_t before = allocation_count();
      const int sampled = counter.tokens;
      for (int i = 0; i < 60; ++i) engine.step(counter);
      const int64_t taken = allocation_count() - before;
      EXPECT_EQ(counter.tokens - sampled, 60 * 8);
      if (round == 1) {
        EXPECT_EQ(taken, 0) << set;
      }
      run_all(engine, counter);
    }
    // The control: a request that is new takes memory, and the counter sees it.
    const int64_t before = allocation_count();
    engine.add(request(100, 5, 2));
    EXPECT_GT(allocation_count(), before);
    run_all(engine, counter);
  }
}

TEST(Engine, CachedBlocksGiveTheSameBitsAndComeBack) {
  Model model(tiny());
  Answers cold, warm, salted;
  Engine engine(model, {.block_size = 32, .kv_bytes = 16 << 20});
  const int blocks = engine.num_blocks();
  engine.add(request(1, 200, 20));
  run_all(engine, cold);
  for (Answers* answers : {&warm, &salted}) {
    Request again = request(1, 200, 20);
    if (answers == &salted) again.cache_salt = "someone else";
    engine.add(std::move(again));
    ASSERT_TRUE(engine.step(*answers));
    // 200 tokens are 6 whole blocks of 32; another salt meets none of them.
    EXPECT_EQ(engine.last_step().cached, answers == &warm ? 192 : 0);
    run_all(engine, *answers);
    EXPECT_EQ(answers->hash, cold.hash);
    EXPECT_EQ(engine.check_integrity(), "");
  }
  engine.clear_prefix_cache();
  engine.add(request(1, 200, 1));
  ASSERT_TRUE(engine.step(warm));
  EXPECT_EQ(engine.last_step().cached, 0);
  EXPECT_EQ(engine.num_blocks(), blocks);
}

TEST(Engine, AnAbortedOrRefusedRequestHarmsNobody) {
  Model model(tiny());
  Answers alone, together;
  {
    Engine engine(model, {.kv_bytes = 16 << 20});
    engine.add(request(1, 40, 10));
    run_all(engine, alone);
  }
  Engine engine(model, {.kv_bytes = 16 << 20});
  engine.add(request(1, 40, 10));
  Request bad = request(2, 40, 10);
  bad.params.logit_bias = {{3, 1.0}};
  engine.add(std::move(bad));
  EXPECT_THROW(engine.add(request(2, 5, 5)), UsageError);  // the id is in use
  Request wrong = request(3, 5, 5);
  wrong.params.top_p = 2;
  EXPECT_THROW(engine.add(std::move(wrong)), UsageError);
  Request outside = request(3, 5, 5);
  outside.prompt.edit()[2] = 1 << 20;
  EXPECT_THROW(engine.add(std::move(outside)), UsageError);
  engine.step(together);
  engine.abort(2);
  engine.abort(77);  // unknown: nothing
  run_all(engine, together);
  EXPECT_EQ(together.hash[1], alone.hash[1]);
  EXPECT_EQ(together.finish[1], FinishReason::length);
  EXPECT_EQ(engine.check_integrity(), "");
}

// Tokens are texts of up to 8 letters a and b, and the language needs 2^30 states.
TEST(Engine, AGrammarWithTooManyStatesEndsItsOwnAnswer) {
  std::vector<std::string> bytes = {"a", "b"};
  for (size_t i = 0; bytes[i].size() < 8; ++i)
    for (const char c : {'a', 'b'}) bytes.push_back(bytes[i] + c);
  const auto table = std::make_shared<const TokenTable>(bytes);
  const auto constraint = [&](const std::string& pattern) {
    return std::make_shared<Constraint>(grammar::regex_language(pattern), table);
  };
  std::string many = "(a|b)*a";  // as a counter the end would need few
  for (int i = 0; i < 30; ++i) many += "(a|b)";
  const auto shared = constraint(many);
  const auto held = [&](int64_t id, int answer, std::shared_ptr<Constraint> to) {
    Request r = request(id, 20, answer);
    r.params.temperature = 1;
    r.params.top_p = 1;
    r.params.top_k = 0;
    r.constraint = std::move(to);
    return r;
  };
  Model model(tiny());
  const auto add_neighbours = [&](Engine& engine) {
    engine.add(request(1, 40, 200));
    engine.add(held(2, 200, constraint("(a|b)*")));
  };
  Answers alone, together;
  {
    Engine engine(model, {.kv_bytes = 16 << 20});
    add_neighbours(engine);
    run_all(engine, alone);
  }
  Engine engine(model, {.kv_bytes = 16 << 20});
  add_neighbours(engine);
  engine.add(held(3, 200, shared));
  engine.add(held(4, 4, shared));  // the same grammar, but not long enough to need much of it
  run_all(engine, together);
  EXPECT_EQ(together.finish[3], FinishReason::failed);
  EXPECT_EQ(together.finish[4], FinishReason::length);
  for (const int64_t id : {1, 2}) {
    EXPECT_EQ(together.hash[id], alone.hash[id]);
    EXPECT_EQ(together.finish[id], FinishReason::length);
  }
  EXPECT_EQ(engine.check_integrity(), "");
  // Where it ends depends on it alone, though the constraint now knows all of its states.
  const int tokens = together.tokens[3];
  EXPECT_GT(tokens, 10);
  Answers again;
  engine.add(held(3, 200, shared));
  run_all(engine, again);
  EXPECT_EQ(again.tokens[3], tokens);
  EXPECT_EQ(again.finish[3], FinishReason::failed);
}

TEST(Engine, RefusesAMemoryThatHoldsNoRequest) {
  Model model(tiny());
  EXPECT_THROW(Engine(model, {.kv_bytes = 1}), Error);
  EngineOptions options{.kv_bytes = 64 << 10};
  options.scheduler.max_model_len = 512;
  EXPECT_THROW(Engine(model, options), Error);
  options.block_size = 48;
  EXPECT_THROW(Engine(model, options), UsageError);
}

// Sums of rows do not overflow.
TEST(Engine, RefusesMoreSequencesOrRowsThanItCounts) {
  Model model(tiny());
  const auto refusal = [&](int sequences, int rows) -> std::string {
    EngineOptions options{.kv_bytes = 64 << 20};
    options.scheduler.max_num_seqs = sequences;
    options.scheduler.max_num_batched_tokens = rows;
    try {
      Engine engine(model, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(INT32_MAX, INT32_MAX),
            "expected max-num-seqs of 1 to 1048576, found 2147483647");
  EXPECT_EQ(refusal(2, INT32_MAX),
            "expected max-num-batched-tokens of at least max-num-seqs (2) and at most 16777216, "
            "found 2147483647");
  EXPECT_EQ(refusal(2, 512), "");
}

// A cache of another size gives the same context or no engine: never a shorter answer.
TEST(Engine, TheContextIsTheModelsWhateverTheMemory) {
  Model model(tiny());
  const int64_t whole = Engine(model, {.kv_bytes = 64 << 20}).kv_bytes();
  const int longest = model.spec().max_positions;
  for (const int64_t bytes : {int64_t{16} << 20, int64_t{64} << 20})
    EXPECT_EQ(Engine(model, {.kv_bytes = bytes}).max_model_len(), longest)
        << bytes << " of " << whole;
  const std::string refusal = [&] {
    try {
      Engine engine(model, {.kv_bytes = 1 << 20});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("it starts");
  }();
  EXPECT_NE(refusal.find("--max-model-len 512 or auto"), std::string::npos) << refusal;
  // The number that it names fits, and is what it takes where it may.
  EngineOptions named{.kv_bytes = 1 << 20};
  named.scheduler.max_model_len = 512;
  EXPECT_EQ(Engine(model, named).max_model_len(), 512);
  EXPECT_EQ(Engine(model, {.fit_context = true, .kv_bytes = 1 << 20}).max_model_len(), 512);
}

// However many decode, each gets a row, and a prompt goes on beside them.
TEST(Engine, AStepHasTheRowsThatItMayTake) {
  Model model(tiny());
  const auto run = [&](int step_rows, int& most) {
    EngineOptions options{.step_rows = step_rows, .kv_bytes = 16 << 20};
    options.scheduler.max_num_batched_tokens = 512;
    Engine engine(model, options);
    Answers answers;
    for (int id = 0; id < 8; ++id) engine.add(request(id, 5, 60));
    engine.step(answers);
    engine.add(request(9, 300, 3));
    while (engine.step(answers)) most = std::max(most, engine.last_step().rows);
    return answers.hash;
  };
  int free = 0, bounded = 0, tight = 0;
  const auto expected = run(0, free);
  EXPECT_EQ(run(64, bounded), expected);
  EXPECT_EQ(run(1, tight), expected);
  EXPECT_EQ(free, 308);
  EXPECT_EQ(bounded, 64);
  EXPECT_EQ(tight, 8 + 1 + 32);
}

struct Vectors final : OutputSink {
  void on_start(int64_t request, int32_t) override { ++starts[request]; }
  void on_token(const TokenOutput& output) override { errors += output.error != nullptr; }
  void on_pooled(const PooledOutput& output) override { of[output.request] = output.numbers; }
  std::map<int64_t, std::vector<float>> of;
  std::map<int64_t, int> starts;
  int errors = 0;
};

// What docs/server.md says a text's vector is, by batches that nobody schedules.
std::vector<float> mean_hidden_state(Model& model, const std::vector<int32_t>& tokens) {
  Executor runner(model, {.blocks = 8, .max_rows = 64, .max_aux_layers = 1});
  std::vector<float> sum(model.spec().hidden, 0.0F);
  for (size_t begin = 0; begin < tokens.size(); begin += 64) {
    Batch batch{.sequences = {{{0, 1, 2, 3, 4, 5, 6, 7}}}, .aux_layers = {model.spec().layers - 1}};
    for (size_t t = begin; t < std::min(begin + 64, tokens.size()); ++t)
      batch.rows.push_back({tokens[t], static_cast<int32_t>(t), 0});
    ForwardIo io;
    runner.run(batch, io);
    for (size_t i = 0; i < io.aux_hidden.size(); ++i) sum[i % sum.size()] += io.aux_hidden[i];
  }
  for (float& value : sum) value /= static_cast<float>(tokens.size());
  return sum;
}

Request text(int64_t id, int size, int first_token = 5) {
  Request r = request(id, size, 16, first_token);
  r.pooled = true;
  return r;
}

TEST(Engine, AVectorIsAFunctionOfItsTokensAlone) {
  Model model(tiny());
  const auto run = [&](int rows, int64_t kv_bytes, int neighbours, int& starts) {
    EngineOptions options{
        .block_size = 32, .kv_bytes = kv_bytes, .prefix_caching = false, .embeddings = true};
    options.scheduler.max_model_len = 400;
    options.scheduler.max_num_seqs = std::min(rows, 16);
    options.scheduler.max_num_batched_tokens = rows;
    Engine engine(model, options);
    Vectors vectors;
    for (int id = 10; id < 10 + neighbours; ++id) engine.add(request(id, 30 + id, 90));
    for (const int size : {1, 33, 250, 400}) engine.add(text(size, size));
    run_all(engine, vectors);
    EXPECT_EQ(engine.check_integrity(), "");
    EXPECT_EQ(vectors.errors, 0);
    starts = vectors.starts[250];
    return vectors.of;
  };
  int starts = 0, once = 0;
  const auto whole = run(512, 16 << 20, 0, once);
  EXPECT_EQ(whole.size(), 4u);
  for (const auto& [size, vector] : whole)
    EXPECT_EQ(vector, mean_hidden_state(model, text(0, static_cast<int>(size)).prompt)) << size;
  EXPECT_EQ(run(37, 16 << 20, 5, once), whole);
  EXPECT_EQ(once, 1);
  // Four answers need more blocks than there are: the youngest, a text, begins again.
  EXPECT_EQ(run(12, 1100 << 10, 4, starts), whole);
  EXPECT_GT(starts, 1);
  // The control: another text has another vector.
  EXPECT_NE(mean_hidden_state(model, text(0, 250, 6).prompt), whole.at(250));
}

TEST(Engine, ATextThatNobodyWantsAnyMoreFreesItsBlocks) {
  Model model(tiny());
  EngineOptions options{.kv_bytes = 16 << 20, .embeddings = true};
  options.scheduler.max_num_seqs = options.scheduler.max_num_batched_tokens = 64;
  Engine engine(model, options);
  Vectors vectors;
  const int free = engine.free_blocks();
  engine.add(text(1, 3000));
  engine.step(vectors);
  EXPECT_LT(engine.free_blocks(), free);
  engine.abort(1);
  EXPECT_FALSE(engine.step(vectors));
  EXPECT_EQ(engine.free_blocks(), free);
  EXPECT_TRUE(vectors.of.empty());
  Engine without(model, {.kv_bytes = 16 << 20});
  EXPECT_THROW(without.add(text(1, 5)), UsageError);
  EXPECT_THROW(engine.add(text(1, 4097)), UsageError);
}

// Where memory is short a sequence begins again; what it began with is counted the first time.
TEST(Engine, APreemptedPromptIsCountedOnce) {
  Model model(tiny());
  EngineOptions options{.kv_bytes = 600 << 10, .prefix_caching = false};
  options.scheduler.max_model_len = 200;
  Engine engine(model, options);
  Answers answers;
  int prompts = 0, begun = 0, preempted = 0;
  for (int id = 0; id < 6; ++id) {
    engine.add(request(id, 60 + id, 120));
    prompts += 60 + id;
  }
  while (engine.step(answers)) {
    begun += engine.last_step().begun;
    preempted += engine.last_step().preempted;
  }
  EXPECT_GT(preempted, 0);
  EXPECT_EQ(begun, prompts);
}

// A prompt's log-probabilities need no room for the logits of a whole step.
TEST(Engine, PromptLogprobsAreTheSameInLittleRoom) {
  struct Scores final : OutputSink {
    void on_token(const TokenOutput&) override {}
    void on_prompt(const PromptOutput& output) override {
      logprobs.push_back(output.logprobs.logprob);
    }
    std::vector<float> logprobs;
  };
  Model model(tiny());
  const auto scores = [&](int sequences, int rows) {
    EngineOptions options{.kv_bytes = 16 << 20, .prompt_logprobs = true};
    options.scheduler.max_num_seqs = sequences;
    options.scheduler.max_num_batched_tokens = rows;
    Engine engine(model, options);
    Request r = request(2, 300, 1);
    r.params.prompt_logprobs = 0;
    engine.add(std::move(r));
    Scores found;
    run_all(engine, found);
    return found.logprobs;
  };
  const std::vector<float> roomy = scores(512, 512);
  EXPECT_EQ(roomy.size(), 299u);
  EXPECT_EQ(scores(4, 512), roomy);
  EXPECT_EQ(scores(4, 40), roomy);
}

// Of a prompt whose blocks are in the cache, every position's: what was not computed has none.
TEST(Engine, PromptLogprobsOfACachedPromptAreThoseOfAFreshOne) {
  struct Scores final : OutputSink {
    void on_token(const TokenOutput&) override {}
    void on_prompt(const PromptOutput& output) override { all.push_back(output.logprobs); }
    std::vector<TokenLogprobs> all;
  };
  Model model(tiny());
  Engine engine(model, {.block_size = 32, .kv_bytes = 16 << 20, .prompt_logprobs = true});
  const auto scores = [&](std::optional<int> asked, int cached) {
    Request r = request(2, 200, 1);
    r.params.prompt_logprobs = asked;
    engine.add(std::move(r));
    Scores found;
    EXPECT_TRUE(engine.step(found));
    EXPECT_EQ(engine.last_step().cached, cached);
    run_all(engine, found);
    return found.all;
  };
  const std::vector<TokenLogprobs> fresh = scores(2, 0);
  EXPECT_EQ(fresh.size(), 199u);
  EXPECT_TRUE(scores(std::nullopt, 0).empty()) << "such a request leaves no blocks, either";
  EXPECT_TRUE(scores(std::nullopt, 192).empty()) << "the blocks are there";
  EXPECT_EQ(scores(2, 0), fresh);
}

TEST(Engine, AnAnswerThatTheContextDoesNotHoldIsRefusedAndNeverCut) {
  Model model(tiny());
  EngineOptions options{.kv_bytes = 1 << 20};
  options.scheduler.max_model_len = 64;
  Engine engine(model, options);
  EXPECT_THROW(engine.add(request(1, 40, 25)), UsageError);
  EXPECT_THROW(engine.add(request(1, 40, INT32_MAX)), UsageError);
  Answers answers;
  engine.add(request(2, 40, 24));
  run_all(engine, answers);
  EXPECT_EQ(answers.tokens[2], 24);
  EXPECT_EQ(answers.finish[2], FinishReason::length);
}

}  // namespace
}  // namespace invar
