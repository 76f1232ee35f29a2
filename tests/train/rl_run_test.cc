// Runs of reinforcement learning: sampler and trainer are one policy to the bit, whatever computes
// them; weights are handed over whole; runs go on exactly; one sentence for what is wrong.
#include "train/rl/rl_run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "../support/fixed_drafts.h"
#include "base/error.h"
#include "base/json.h"
#include "kernels/select.h"
#include "model/parameter_source.h"
#include "train/checkpoint.h"
#include "train/rl/experiment.h"
#include "train/rl/packing.h"
#include "train/rl/rollouts.h"
#include "train/training_run.h"
#include "weights/hf_directory.h"

namespace invar::rl {
namespace {

namespace fs = std::filesystem;

// Learns in a second to end its sums with "The answer is", and sometimes with the right one.
constexpr const char* kStart = R"(
name = "start"
[corpus]
kinds = ["arithmetic"]
[tokenizer]
documents = 100
[model]
hidden = 64
layers = 2
heads = 2
kv_heads = 1
head_dim = 32
ffn = 128
vocab = 600
max_positions = 256
[training]
context = 128
rows = 8
groups = 2
batch_rows = 4
[optimizer]
steps = 150
warmup = 10
rate = 1e-2
[evaluation]
documents = 10
every = 1000
[checkpoint]
every = 1000
)";

constexpr const char* kRl = R"(
name = "tiny"
seed = 1
model = "start/model"
[tasks]
kinds = ["arithmetic"]
[rollouts]
prompts = 8
answers = 8
max_tokens = 40
[policy]
method = "reinforce"
[training]
context = 128
groups = 2
batch_rows = 4
[optimizer]
steps = 3
warmup = 1
rate = 1e-3
decay = 0.0
[evaluation]
problems = 8
[checkpoint]
every = 2
)";

class RlRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = fs::temp_directory_path() / fmt::format("invar-rl-{}", getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    RunOptions options;
    options.output = (directory_ / "start").string();
    options.threads = 1;
    run_training(read_recipe(write("start.toml", kStart)), options);
  }
  static void TearDownTestSuite() { fs::remove_all(directory_); }

  static std::string write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
    return (directory_ / name).string();
  }
  static std::string replaced(const std::string& from, const std::string& to) {
    std::string text = kRl;
    return text.replace(text.find(from), from.size(), to);
  }
  static RlRecipe recipe() { return read_rl_recipe(write("rl.toml", kRl)); }
  static RlOptions to(const std::string& name) {
    RlOptions options;
    options.output = (directory_ / name).string();
    options.threads = 1;
    return options;
  }
  // The digest of the weights at the end, and what every step measured.
  static std::string digest(const RlRecipe& r, RlOptions options,
                            std::vector<RlProgress>* steps = nullptr) {
    fs::remove_all(options.output);
    options.progress = [&](const RlProgress& p) {
      if (steps) steps->push_back(p);
    };
    return run_rl(r, options).weights_digest;
  }
  template <typename Work>
  static std::string sentence_of(Work work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }

  static inline fs::path directory_;
};

TEST_F(RlRuns, SamplerAndTrainerAreOnePolicy) {
  std::vector<RlProgress> steps;
  const std::string exact = digest(recipe(), to("exact"), &steps);
  double rewards = 0;
  ASSERT_EQ(steps.size(), 3u);
  for (const RlProgress& p : steps) {
    const Mismatch& m = p.mismatch;
    EXPECT_GT(m.tokens, 500);
    EXPECT_EQ(m.different, 0);
    for (const double zero : {m.k1, m.k2, m.k3, m.largest_difference, m.ratio_deviation,
                              m.clip_fraction, m.smallest_ratio - 1, m.largest_ratio - 1})
      EXPECT_EQ(zero, 0.0);
    rewards += p.reward;
    EXPECT_GT(p.entropy, 0.1);
  }
  EXPECT_GT(rewards, 0.0);  // else nothing was learned and weights would agree for nothing

  // A step after the first that learned, the first weights hold back.
  RlRecipe held = recipe();
  held.policy.reference = 0.1;
  EXPECT_NE(digest(held, to("held")), exact);

  // The controls: another arithmetic, other weights. (Uncorrected, a sampler that draws the same
  // tokens by chance teaches the same.)
  for (const SamplerOptions& sampler :
       {SamplerOptions{"control", "exact"}, SamplerOptions{"portable", "int8"}}) {
    RlRecipe r = recipe();
    r.sampler = sampler;
    r.policy.correction = Correction::truncated;
    steps.clear();
    EXPECT_NE(digest(r, to("mismatch"), &steps), exact);
    for (const RlProgress& p : steps) {
      EXPECT_GT(p.mismatch.different, p.mismatch.tokens / 2) << sampler.arithmetic;
      EXPECT_GT(p.mismatch.k3, 0.0);
      EXPECT_GT(p.mismatch.largest_ratio, 1.0);
    }
  }
}

// Problems of a file, judged by a program that likes short answers: the run learns from them, and
// from others it learns something else.
TEST_F(RlRuns, LearnFromProblemsOfAFile) {
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is {} + {}?\"}}]}}\n", i,
        i + 1);
  write("problems.jsonl", lines);
  const std::string own = replaced("kinds = [\"arithmetic\"]", R"(file = "problems.jsonl"
held_out = 8
command = ["/bin/sh", "-c", 'while read -r l; do echo "{\"reward\": $(( ${#l} % 2 ))}"; done'])");
  const RlRecipe r = read_rl_recipe(write("own.toml", own));
  std::vector<RlProgress> steps;
  const std::string weights = digest(r, to("own"), &steps);
  double rewards = 0;
  for (const RlProgress& p : steps) {
    EXPECT_EQ(p.mismatch.different, 0);
    rewards += p.reward;
  }
  EXPECT_GT(rewards, 0);
  EXPECT_NE(weights, digest(recipe(), to("made")));
  RlRecipe other = r;
  other.own.command = {};
  other.own.reward = "contains";
  EXPECT_NE(weights, digest(other, to("other")));
}

TEST_F(RlRuns, GiveTheSameWeightsHoweverTheyAreRun) {
  // Two steps: the first that learns something and the one before.
  const auto brief = [](auto change) {
    RlRecipe r = recipe();
    RlOptions options = to("run");
    options.until = 2;
    r.evaluation_problems = 0;
    change(r, options);
    return digest(r, options);
  };
  const std::string expected = brief([](RlRecipe&, RlOptions&) {});
  const auto same = [&](const char* what, auto change) {
    EXPECT_EQ(brief(change), expected) << what;
  };
  // Ratios of exactly 1: every correction is none.
  same("threads, few at once, truncated", [](RlRecipe& r, RlOptions& o) {
    o.threads = 2;
    r.engine.scheduler.max_num_seqs = 5;
    r.engine.scheduler.max_num_batched_tokens = 37;
    r.policy.correction = Correction::truncated;
  });
  same("ranks, blocks, clipped, vllm", [](RlRecipe& r, RlOptions& o) {
    o.ranks = 2;
    r.trainer.batch_rows = 1;
    r.engine.prefix_caching = false;
    r.engine.block_size = 64;
    r.engine.scheduler.policy = "vllm";
    r.policy.correction = Correction::clipped;
  });
  same("avx2, orca", [](RlRecipe& r, RlOptions& o) {
    o.instruction_set = "avx2";
    r.engine.scheduler.policy = "orca";
  });

  const auto differs = [&](const char* what, auto change) {
    EXPECT_NE(brief([&](RlRecipe& r, RlOptions&) { change(r); }), expected) << what;
  };
  differs("seed", [](RlRecipe& r) { r.seed = 2; });
  differs("method", [](RlRecipe& r) { r.policy.method = Method::grpo; });
  differs("answers", [](RlRecipe& r) { r.answers = 9; });
}

// Temperatures and filters are part of the policy: the sampler's log-probabilities of what it
// samples from are the trainer's, to the bit (a run ends at the first that is not).
TEST_F(RlRuns, WhatIsSampledFromIsWhatIsTrained) {
  const std::string plain = digest(recipe(), to("plain"));
  for (const char* rows :
       {"temperature = 0.5", "temperature = 1.2\ntop_p = 0.9", "temperature = 0.7\ntop_k = 20",
        "temperature = 0.9\nmin_p = 0.05", "top_p = 0.8\ntop_k = 50\nmin_p = 0.01"}) {
    const RlRecipe r = read_rl_recipe(
        write("sampled.toml", replaced("answers = 8", std::string("answers = 8\n") + rows)));
    std::vector<RlProgress> steps;
    EXPECT_NE(digest(r, to("sampled"), &steps), plain) << rows;
    int64_t tokens = 0;
    for (const RlProgress& p : steps) {
      EXPECT_EQ(p.mismatch.different, 0) << rows;
      tokens += p.mismatch.tokens;
    }
    EXPECT_GT(tokens, 1000) << rows;
  }
}

// The control: the raw mode, in which log-probabilities are the model's own.
TEST_F(RlRuns, RawLogProbabilitiesAreNotThoseOfWhatIsSampled) {
  const std::string model = (directory_ / "start/model").string();
  const HfDirectory directory = open_hf_directory(model);
  TrainerOptions options;
  options.model = parse_model_config(directory.config, directory.generation_config, model);
  options.context = 128, options.rows = options.groups = options.batch_rows = 2;
  options.sampled = {.temperature = 0.7, .top_p = 0.95};
  Trainer trainer(options, starting_state(options.model.spec, *open_checkpoint(model)));
  InstanceOptions instance{.model = {.model = model, .threads = 1}};
  instance.engine.scheduler.max_model_len = 128;
  std::vector<Question> questions;
  for (uint64_t seed = 0; seed < 8; ++seed) questions.push_back({{20, 27, 34, 41}, seed});
  const auto different = [&](LogprobsMode mode) {
    SamplingParams sampling = options.sampled;
    sampling.max_tokens = 30;
    sampling.logprobs_mode = mode;
    Rollouts rollouts(instance, sampling);
    const std::vector<Answer> answers = rollouts.answer(questions, 1);
    std::vector<const std::vector<int32_t>*> prompts, tokens;
    for (size_t i = 0; i < answers.size(); ++i) {
      prompts.push_back(&questions[i].prompt);
      tokens.push_back(&answers[i].tokens);
    }
    const PackedAnswers packed = pack_answers(prompts, tokens, options.context, 2, 0);
    const std::vector<float> trained = trainer.log_probabilities(packed.rows);
    int64_t count = 0;
    for (size_t i = 0; i < answers.size(); ++i)
      for (int32_t t = 0; t < packed.places[i].tokens; ++t)
        count +=
            trained[packed.places[i].index(options.context) + t] != answers[i].log_probabilities[t];
    return count;
  };
  EXPECT_EQ(different(LogprobsMode::processed_logprobs), 0);
  EXPECT_GT(different(LogprobsMode::raw_logprobs), 100);
}

TEST_F(RlRuns, MethodsDifferByTheirAveragesAlone) {
  const auto weights = [&](Method method) {
    RlRecipe r = recipe();
    r.policy.method = method;
    return digest(r, to("method"));
  };
  const std::string reinforce = weights(Method::reinforce);
  EXPECT_EQ(weights(Method::rloo), reinforce);
  std::set<std::string> others = {reinforce};
  for (const Method method : {Method::grpo, Method::dr_grpo, Method::dapo})
    EXPECT_TRUE(others.insert(weights(method)).second);
}

// Several steps of the optimizer on one rollout: behind the first the sampler is an older policy.
TEST_F(RlRuns, LearnFromARolloutSeveralTimes) {
  const std::string text = replaced(
      "method = \"reinforce\"", "method = \"dapo\"\nclip = 0.01\nclip_high = 0.02\nupdates = 3");
  RlRecipe r = read_rl_recipe(write("updates.toml", text));
  r.trainer.optimizer.steps = 6;
  std::vector<RlProgress> steps;
  const std::string expected = digest(r, to("updates"), &steps);
  ASSERT_EQ(steps.size(), 2u);
  int64_t moved = 0;  // a rollout whose rewards are all equal moves nothing
  double clipped = 0;
  for (const RlProgress& p : steps) {
    EXPECT_EQ(p.mismatch.different, 0);
    moved += p.last_update.different;
    clipped += p.last_update.clip_fraction;
  }
  EXPECT_GT(moved, 0);
  EXPECT_GT(clipped, 0.0);
  RlOptions halves = to("halves");
  halves.until = 3;
  digest(r, halves);
  halves.until = 0;
  EXPECT_EQ(run_rl(r, halves).weights_digest, expected);
}

// With a rate that does not fall the weights are those of a run that had as many from the start.
TEST_F(RlRuns, GoOnWithMoreSteps) {
  RlRecipe r = recipe();
  r.trainer.optimizer.final_rate = 1;
  r.trainer.optimizer.steps = 5;
  const std::string expected = digest(r, to("five"));
  RlRecipe fewer = r;
  fewer.trainer.optimizer.steps = 3;
  const std::string before = digest(fewer, to("extended"));
  EXPECT_EQ(run_rl(r, to("extended")).weights_digest, expected);
  EXPECT_NE(before, expected);
  EXPECT_NE(sentence_of([&] { run_rl(fewer, to("extended")); }).find("expected steps 3, found 5"),
            std::string::npos);

  // One that falls: only if that is said, and from there on along the new count.
  RlRecipe falls = recipe(), longer = recipe();
  longer.trainer.optimizer.steps = 5;
  digest(falls, to("falls"));
  EXPECT_NE(sentence_of([&] { run_rl(longer, to("falls")); }).find("or --extend to go on"),
            std::string::npos);
  RlOptions options = to("falls");
  options.extends = true;
  options.until = 4;
  run_rl(longer, options);
  const json::Value saved = json::parse_file(options.checkpoints() + "/step-000004/training.json");
  EXPECT_EQ(json::dump(*saved.find("recipe")->find("extended")), "[[3, 3]]");
  options = to("falls");
  const std::string weights = run_rl(longer, options).weights_digest;
  EXPECT_NE(weights, digest(longer, to("longer")));
}

// A program that answers: what it says is in the text and teaches nothing itself.
TEST_F(RlRuns, LearnFromConversations) {
  write("problems.jsonl", R"({"messages": [{"role": "user", "content": "What is 1 + 2?"}]})");
  write("talk.py", R"(
def talk(answer, turn, last):
    if last:
        return len(answer) % 2
    return "And now?"
)");
  const auto run = [&](int turns, std::vector<RlProgress>& steps) {
    std::string text = replaced("kinds = [\"arithmetic\"]",
                                "file = \"problems.jsonl\"\npython = \"talk.py:talk\"");
    text.replace(text.find("max_tokens = 40"), 15,
                 fmt::format("max_tokens = 12\nturns = {}", turns));
    text.replace(text.find("problems = 8"), 12, "problems = 0");
    return digest(read_rl_recipe(write("talk.toml", text)), to("talk"), &steps);
  };
  std::vector<RlProgress> one, three;
  EXPECT_NE(run(1, one), run(3, three));
  for (const RlProgress& p : three) {
    EXPECT_EQ(p.mismatch.different, 0);
    EXPECT_GT(p.mismatch.tokens, 2 * one[0].mismatch.tokens);
    EXPECT_LE(p.mismatch.tokens, 8 * 8 * 36) << "words of the program were taken for samples";
  }
}

// Answers that are decoded along drafts teach the same; metrics and all.
TEST_F(RlRuns, DraftsDoNotShow) {
  std::vector<RlProgress> plain, drafted;
  RlOptions options = to("plain");
  options.until = 2;
  const std::string expected = digest(recipe(), options, &plain);
  for (const char* config : {R"({"method":"early_exit","num_speculative_tokens":3})",
                             R"({"method":"ngram","prompt_lookup_min":1})"}) {
    drafted.clear();
    options.output = to("drafted").output;
    options.speculation = fixed_drafts(config);
    EXPECT_EQ(digest(recipe(), options, &drafted), expected) << config;
    ASSERT_EQ(drafted.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(drafted[i].reward, plain[i].reward);
      EXPECT_EQ(drafted[i].entropy, plain[i].entropy);
      EXPECT_EQ(drafted[i].mismatch.different, 0);
      EXPECT_EQ(drafted[i].mismatch.k3, 0.0);
    }
    EXPECT_GT(drafted.back().drafts.accepted, 100) << config;
    EXPECT_EQ(plain.back().drafts.tokens, 0);
  }
}

// The control: where rows depend on their neighbours drafts show in what is learned from, so that
// such a run is refused.
TEST_F(RlRuns, UnderTheBaselineDraftsShow) {
  InstanceOptions instance{.model = {.model = (directory_ / "start/model").string(),
                                     .arithmetic = "control",
                                     .threads = 1}};
  instance.engine.scheduler.max_model_len = 256;
  const auto answers = [&](const SpeculativeConfig& speculation) {
    instance.speculation = speculation;
    Rollouts rollouts(instance, {.max_tokens = 20});
    Question question{.seed = 5};
    for (int i = 0; i < 40; ++i) question.prompt.push_back(20 + i * 7 % 300);
    return rollouts.answer(std::vector<Question>{question}, 1)[0].log_probabilities;
  };
  const auto drafts = fixed_drafts(R"({"method":"early_exit","num_speculative_tokens":3})");
  EXPECT_NE(answers(drafts), answers({}));

  RlRecipe baseline = recipe();
  baseline.sampler.arithmetic = "control";
  RlOptions options = to("refused");
  options.speculation = drafts;
  EXPECT_NE(sentence_of([&] { run_rl(baseline, options); }).find("expected no drafts"),
            std::string::npos);
}

// Killed at any step, with a checkpoint half written beside the whole one.
TEST_F(RlRuns, GoOnAfterTheyAreKilled) {
  const std::string expected = digest(recipe(), to("whole"));
  for (int64_t last = 1; last <= 2; ++last) {
    const RlOptions options = to(fmt::format("killed-{}", last));
    const pid_t child = fork();
    if (child == 0) {
      RlOptions dying = options;
      dying.progress = [&](const RlProgress& p) {
        if (p.report.step == last) kill(getpid(), SIGKILL);
      };
      run_rl(recipe(), dying);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    fs::create_directories(fs::path(options.output) / "checkpoints/step-000003.partial");
    EXPECT_EQ(run_rl(recipe(), options).weights_digest, expected) << "killed at " << last;
    std::ifstream metrics(fs::path(options.output) / "metrics.jsonl");
    int64_t step = 0;
    for (std::string line; std::getline(metrics, line); ++step)
      EXPECT_EQ(json::parse(line, "line").find("step")->as_integer(), step);
    EXPECT_EQ(step, 4);
  }
  EXPECT_EQ(open_hf_directory((directory_ / "whole/model").string()).config,
            open_hf_directory((directory_ / "start/model").string()).config);
}

// As Ctrl-C does it: the run ends after the step, with a checkpoint, whatever save_every says.
TEST_F(RlRuns, GoOnAfterTheyAreStopped) {
  RlRecipe rare = recipe();
  rare.save_every = 100;
  const std::string expected = run_rl(rare, to("unstopped")).weights_digest;
  RlOptions options = to("stopped");
  int64_t done = 0;
  options.progress = [&](const RlProgress& p) { done = p.report.step; };
  options.stop = [&] { return done == 2; };
  const RlResult stopped = run_rl(rare, options);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.steps, 2);
  EXPECT_NE(stopped.weights_digest, expected);
  options.stop = nullptr;
  options.progress = [&](const RlProgress& p) { EXPECT_GT(p.report.step, 2); };
  EXPECT_EQ(run_rl(rare, options).weights_digest, expected);
}

// A limit on the size of files stands for a full disk.
TEST_F(RlRuns, KeepTheLastCheckpointWhenTheNextFails) {
  RlOptions options = to("full");
  options.until = 2;
  run_rl(recipe(), options);
  const fs::path checkpoints = fs::path(options.output) / "checkpoints";
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100000;
  setrlimit(RLIMIT_FSIZE, &small);
  options.until = 0;
  EXPECT_THROW(run_rl(recipe(), options), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(fs::exists(checkpoints / "step-000002/training.json"));
  EXPECT_FALSE(fs::exists(checkpoints / "step-000003"));
  EXPECT_EQ(run_rl(recipe(), options).weights_digest, digest(recipe(), to("whole")));
}

// ---- The hand-over

Question question(int length) {
  Question q{.seed = 5};
  for (int i = 0; i < length; ++i) q.prompt.push_back(20 + i * 7 % 300);
  return q;
}

TEST_F(RlRuns, HandOverLeavesNoStaleBlock) {
  const std::string model = (directory_ / "start/model").string();
  const auto rollouts = [&] {
    InstanceOptions options{.model = {.model = model, .threads = 1}};
    options.engine.block_size = 32;
    options.engine.scheduler.max_model_len = 256;
    return Rollouts(options, {.max_tokens = 20});
  };
  // Other weights: every matrix a quarter smaller.
  const auto source = open_checkpoint(model);
  const HfDirectory directory = open_hf_directory(model);
  const DecoderSpec spec =
      parse_model_config(directory.config, directory.generation_config, model).spec;
  const ParameterLayout layout(spec);
  std::vector<bf16_t> other(static_cast<size_t>(layout.size()));
  const TrainingState state = starting_state(spec, *source);
  for (size_t i = 0; i < other.size(); ++i) other[i] = f32_to_bf16(0.75f * state.master[i]);
  const ParameterSource weights(layout, other.data());

  const std::vector<Question> questions = {question(100), question(90)};
  Rollouts fresh = rollouts();
  fresh.take_weights(weights);
  const std::vector<Answer> expected = fresh.answer(questions, 1);
  Rollouts before = rollouts();
  const std::vector<Answer> old = before.answer(questions, 1);
  EXPECT_NE(old[0].log_probabilities, expected[0].log_probabilities);

  before.take_weights(weights);
  const std::vector<Answer> handed = before.answer(questions, 2);
  // The control: new weights over blocks of the old ones are seen.
  Rollouts stale = rollouts();
  stale.answer(questions, 1);
  stale.engine().model().reload(weights);
  const std::vector<Answer> mixed = stale.answer(questions, 2);
  for (size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(handed[i].tokens, expected[i].tokens);
    EXPECT_EQ(handed[i].log_probabilities, expected[i].log_probabilities);
    EXPECT_NE(mixed[i].log_probabilities, expected[i].log_probabilities);
  }
  stale.engine().add({.id = 1, .prompt = {1, 2, 3}});
  EXPECT_THROW(stale.take_weights(weights), UsageError);
}

// ---- What is wrong

// The module drafts and is no part of the policy.
TEST_F(RlRuns, AModelWithAModuleOfMultiTokenPredictionIsTrainedWithoutIt) {
  RunOptions options;
  options.output = (directory_ / "with-module").string();
  options.threads = 1;
  std::string text = kStart;
  text.replace(text.find("steps = 150"), 11, "steps = 20");
  run_training(read_recipe(write("with-module.toml", text + "[mtp]\nweight = 0.5\n")), options);
  RlRecipe r = recipe();
  r.model = options.output + "/model";
  r.trainer.optimizer.steps = 2;
  const RlOptions to_module = to("of-module");
  EXPECT_NE(digest(r, to_module), "");
  const HfDirectory made = open_hf_directory(to_module.model());
  EXPECT_EQ(parse_model_config(made.config, made.generation_config, "").spec.mtp_layers, 0);
}

TEST_F(RlRuns, RefuseBadInputInOneSentence) {
  const auto expect_refused = [&](const std::string& from, const std::string& to,
                                  const std::string& sentence) {
    const std::string path = write("bad.toml", replaced(from, to));
    const std::string found = sentence_of([&] { read_rl_recipe(path); });
    EXPECT_NE(found.find(sentence), std::string::npos) << found;
  };
  expect_refused("prompts = 8", "prompt = 8",
                 "bad.toml line 8: expected answers, max_tokens, min_p, prom");
  expect_refused("[policy]", "[polcy]", "found \"polcy\"");
  expect_refused("\"reinforce\"", "\"ppo\"", "expected \"policy.method\" to be one of reinforce");
  expect_refused("\"arithmetic\"", "\"poems\"",
                 "to hold some of arithmetic, format, copying, found \"poems\"");
  expect_refused("\"arithmetic\"", "3", "line 6: expected \"tasks.kinds\" to be a list of strings");
  expect_refused("kinds = [\"arithmetic\"]", "file = \"p\"\nreward = \"exact\"\ncommand = [\"p\"]",
                 "expected a reward by name, the command of a program or a Python function");
  expect_refused("answers = 8", "answers = 8\ntemperature = 0.0", "from 0.01 to 100");
  expect_refused("answers = 8", "answers = 8\nturns = 2", "a Python function that answers");
  expect_refused("[policy]", "[sampler]\nweights = \"int8\"\n[policy]\nupdates = 2",
                 "expected a correction");
  expect_refused("max_tokens = 40", "max_tokens = 40\ntop_k = 5\n[sampler]\nweights = \"int8\"",
                 "expected the trained policy as the sampler");
  expect_refused("[policy]\nmethod = \"reinforce\"", "[policy]\nmethod = \"grpo\"\nupdates = 2",
                 "expected a number of steps that policy.updates divides");
  expect_refused("kinds = [\"arithmetic\"]", "file = \"p\"\ncommand = []", "found an empty list");
  expect_refused("answers = 8", "answers = 1", "from 2 to 1024, found 1");
  expect_refused("groups = 2", "rows = 2", "found \"training.rows\"");
  expect_refused("model = \"start/model\"\n", "", "expected \"model\", found no such key");

  const auto runs = [&](RlRecipe r) { return sentence_of([&] { digest(r, to("bad")); }); };
  RlRecipe r = recipe();
  r.model = (directory_ / "none").string();
  EXPECT_NE(runs(r).find("none: expected a model with a tokenizer.json"), std::string::npos);
  // A model of another vocabulary than its tokenizer's.
  const fs::path other = directory_ / "other";
  fs::copy(directory_ / "start/model", other);
  std::ifstream file(other / "config.json");
  std::string config{std::istreambuf_iterator<char>(file), {}};
  config.replace(config.find("600"), 3, "512");
  std::ofstream(other / "config.json") << config;
  r.model = other.string();
  EXPECT_NE(runs(r).find("expected token ids from 0 to 511, found 597"), std::string::npos);
  // A checkpoint of another run.
  RlOptions options = to("seeded");
  options.until = 2;
  run_rl(recipe(), options);
  r = recipe();
  r.seed = 7;
  const std::string found = sentence_of([&] { run_rl(r, options); });
  EXPECT_NE(found.find("expected seed 7, found 1"), std::string::npos) << found;
}

// Weights of 1e30 behind a norm of 1e-30: the forward is what it was, the norm's gradient is not.
TEST_F(RlRuns, NameStepAndTensorOfGradientsThatAreNotFinite) {
  const std::string model = (directory_ / "start/model").string();
  const HfDirectory directory = open_hf_directory(model);
  TrainerOptions options;
  options.model = parse_model_config(directory.config, directory.generation_config, model);
  options.context = 32, options.rows = options.groups = options.batch_rows = 1;
  const DecoderSpec& spec = options.model.spec;
  const ParameterLayout layout(spec);
  TrainingState state = starting_state(spec, *open_checkpoint(model));
  const auto scale = [&](TensorRole role, int count, float factor) {
    for (int i = 0; i < count; ++i) state.master[layout.offset(role, 1) + i] *= factor;
  };
  scale(TensorRole::post_norm, spec.hidden, 1e-30f);
  scale(TensorRole::gate, spec.layer(0).ffn_width() * spec.hidden, 1e30f);
  scale(TensorRole::up, spec.layer(0).ffn_width() * spec.hidden, 1e30f);
  ThreadPool pool(1);
  RlRecipe r = recipe();
  r.model = (directory_ / "steep").string();
  write_model(r.model, Trainer(options, state), read_tokenizer_texts(model), pool);
  const std::string found = sentence_of([&] { digest(r, to("steep-run")); });
  EXPECT_NE(found.find(": the gradient of tensor \"model.layers.1.post_"), std::string::npos)
      << found;
  EXPECT_EQ(found.find("step "), 0u) << found;
}

TEST_F(RlRuns, ExperimentsAreTheirRuns) {
  const std::string text = std::string(kRl) + R"([[runs]]
name = "control"
arithmetic = "control"
correction = "truncated"
[[runs]]
name = "exact"
)";
  const RlRecipe r = read_rl_recipe(write("experiment.toml", text));
  RlOptions options = to("experiment");
  options.until = 2;
  const auto results = run_experiment(r, options, {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_GT(results[0].mean_k3, 0.0);
  EXPECT_EQ(results[1].mean_k3, 0.0);
  EXPECT_EQ(results[1].largest_difference, 0.0);
  RlRecipe exact = recipe();
  RlOptions alone = to("alone");
  alone.until = 2;
  EXPECT_EQ(results[1].result.weights_digest, digest(exact, alone));
  EXPECT_TRUE(fs::exists(directory_ / "experiment/experiment.svg"));
  EXPECT_TRUE(fs::exists(directory_ / "experiment/exact/curves.svg"));
}

}  // namespace
}  // namespace invar::rl
