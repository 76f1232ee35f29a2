// invar bench divergence: one prompt answered many times at temperature 0 while the load changes;
// where the answers part. He et al. counted 80 different ones among 1000.
#include "bench_divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "cli/help_format.h"

namespace invar::cli {

namespace {

struct DivergenceFlags {
  ModelFlags model;
  int completions = 1000, tokens = 1000, prompt = 100, sequences = 256;
  uint32_t seed = 1;
};

constexpr int64_t kFirstNeighbourId = int64_t{1} << 32;  // ids below are completions
constexpr int kNeighbourPrompt = 400, kNeighbourAnswer = 60;

// The answers to the one prompt, and after every token what the logits were so far.
class Completions final : public OutputSink {
 public:
  explicit Completions(int count) : tokens(count), hashes(count) {}

  void on_token(const TokenOutput& output) override {
    if (output.error) fail("request {} failed: {}", output.request, output.error);
    if (output.finish != FinishReason::none)
      ++(output.request < kFirstNeighbourId ? completed : neighbours_completed);
    if (output.request >= kFirstNeighbourId) return;
    tokens[output.request].push_back(output.token);
    uint64_t hash = 0;
    std::memcpy(&hash, output.logits_hash.data(), sizeof hash);
    hashes[output.request].push_back(hash);
  }

  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint64_t>> hashes;
  int completed = 0, neighbours_completed = 0;
};

// How many values of a list are alike, the most frequent first.
template <typename T>
struct Branches {
  int at = -1;  // the first place where lists differ; -1: nowhere
  std::vector<std::pair<T, int>> counts;
};

template <typename T>
Branches<T> first_branches(const std::vector<std::vector<T>>& lists) {
  Branches<T> found;
  for (size_t i = 0; i < lists[0].size(); ++i) {
    std::map<T, int> counts;
    for (const auto& list : lists) ++counts[list.at(i)];
    if (counts.size() == 1) continue;
    found.at = static_cast<int>(i);
    found.counts.assign(counts.begin(), counts.end());
    std::ranges::stable_sort(found.counts, std::ranges::greater{}, &std::pair<T, int>::second);
    break;
  }
  return found;
}

// Submits completions and neighbours so that the number of live ones wanders.
class NeighbourLoad {
 public:
  NeighbourLoad(const DivergenceFlags& flags, Engine& engine, int vocab)
      : flags_(flags), engine_(engine), vocab_(vocab), random_(flags.seed) {
    prompt_ = tokens(flags.prompt);
  }

  void submit(const Completions& answers) {
    if (steps_++ % 40 == 0) wanted_ = 1 + static_cast<int>(random_() % flags_.sequences);
    for (; added_ < flags_.completions && added_ - answers.completed < wanted_; ++added_) {
      Request request{.id = added_, .prompt = prompt_};
      request.params.temperature = 0;
      request.params.max_tokens = flags_.tokens;
      engine_.add(std::move(request));
    }
    if (random_() % 4 != 0) return;
    Request request{.id = kFirstNeighbourId + neighbours_++,
                    .prompt = tokens(1 + static_cast<int>(random_() % kNeighbourPrompt))};
    request.params.max_tokens = 1 + static_cast<int>(random_() % kNeighbourAnswer);
    request.params.seed = static_cast<uint32_t>(neighbours_);
    request.hash_logits = false;
    engine_.add(std::move(request));
  }
  int64_t neighbours() const { return neighbours_; }

 private:
  std::vector<int32_t> tokens(int count) {
    std::vector<int32_t> list;
    for (int i = 0; i < count; ++i) list.push_back(static_cast<int32_t>(random_() % vocab_));
    return list;
  }

  const DivergenceFlags& flags_;
  Engine& engine_;
  const int vocab_;
  std::mt19937 random_;
  std::vector<int32_t> prompt_;
  int added_ = 0, wanted_ = 1;
  int64_t steps_ = 0, neighbours_ = 0;
};

template <typename T>
json::Value to_json(const Branches<T>& branches) {
  json::Value v;
  v.set("first_difference", branches.at < 0 ? json::Value{} : json::Value(branches.at));
  json::Array counts;
  for (const auto& branch : branches.counts) counts.push_back(branch.second);
  v.set("branches", std::move(counts));
  return v;
}

// "token 103: 992, 8", or that there is none.
template <typename T>
std::string describe(const Branches<T>& branches) {
  if (branches.at < 0) return "nowhere";
  std::string counts;
  for (size_t i = 0; i < std::min<size_t>(8, branches.counts.size()); ++i)
    counts += fmt::format("{}{}", i ? ", " : "", branches.counts[i].second);
  const size_t more = branches.counts.size() - std::min<size_t>(8, branches.counts.size());
  return fmt::format("token {}: {} branches ({}{})", branches.at, branches.counts.size(), counts,
                     more ? ", ..." : "");
}

void check(const DivergenceFlags& flags) {
  if (flags.completions < 2 || flags.tokens < 1 || flags.prompt < 1 || flags.sequences < 1)
    fail_usage(
        "expected --completions of 2 or more and --tokens, --prompt-tokens and --max-num-seqs of 1 "
        "or more, found {}, {}, {} and {}",
        flags.completions, flags.tokens, flags.prompt, flags.sequences);
}

int run_divergence(DivergenceFlags flags) {
  check(flags);
  const auto model = open_with_progress(flags.model);
  EngineOptions options;
  options.scheduler.max_num_seqs = flags.sequences;
  options.scheduler.max_num_batched_tokens = std::max(2048, flags.sequences);
  options.scheduler.max_model_len =
      std::max(flags.prompt + flags.tokens, kNeighbourPrompt + kNeighbourAnswer);
  options.prefix_caching = false;  // every answer computes its prompt
  Instance instance({.model = model->options(), .engine = options}, model);
  Engine& engine = instance.engine();
  NeighbourLoad load(flags, engine, model->spec().vocab);
  Completions answers(flags.completions);
  ProgressLine progress(!flags.model.json);
  const Timer timer;
  int64_t steps = 0, rows = 0;
  while (answers.completed < flags.completions) {
    load.submit(answers);
    engine.step(answers);
    rows += engine.last_step().rows;
    if (steps++ % 64 == 0)
      progress.show_share("answering", answers.completed, flags.completions, "answers");
  }
  progress.clear();
  const double seconds = timer.seconds();
  const auto by_token = first_branches(answers.tokens);
  const auto by_logits = first_branches(answers.hashes);
  const size_t unique = std::set(answers.tokens.begin(), answers.tokens.end()).size();
  std::set<uint64_t> last;
  for (const auto& list : answers.hashes) last.insert(list.back());
  if (flags.model.json) {
    fmt::print("{}\n", json::dump(json::Object{{"model", model->options().model},
                                               {"identity", model->identity()},
                                               {"completions", flags.completions},
                                               {"tokens", flags.tokens},
                                               {"seconds", seconds},
                                               {"rows_per_step", double(rows) / double(steps)},
                                               {"neighbours", load.neighbours()},
                                               {"unique_answers", static_cast<int64_t>(unique)},
                                               {"unique_logits", std::ssize(last)},
                                               {"tokens_differ", to_json(by_token)},
                                               {"logits_differ", to_json(by_logits)}},
                                  2));
  } else {
    fmt::print("{}, {}\n", model->options().model, model->identity());
    fmt::print(
        "{} answers of {} tokens to one prompt of {}, temperature 0, {} neighbours, {:.1f} "
        "rows a step, {:.1f} s\n\n",
        flags.completions, flags.tokens, flags.prompt, load.neighbours(),
        double(rows) / double(steps), seconds);
    fmt::print("  different answers          {}\n", unique);
    fmt::print("  answers part               {}\n", describe(by_token));
    fmt::print("  different logits hashes    {}\n", last.size());
    fmt::print("  logits part                {}\n", describe(by_logits));
  }
  // The baseline promises nothing.
  return last.size() == 1 || model->arithmetic().is_baseline ? 0 : 1;
}

}  // namespace

namespace {

// Flags of the tables over ranks and batches.
void add_rank_divergence_flags(CLI::App& command, RankDivergence& over) {
  command
      .add_option(
          "--over-ranks", over.ranks,
          "Tensor-parallel sizes, as in 1,2,4: answer --requests requests with each of them "
          "and each of --over-batches instead, for several arithmetics side by side")
      ->delimiter(',');
  command.add_option("--over-batches", over.batches, "With --over-ranks: sequences of a step")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--over-arithmetics", over.arithmetics, "With --over-ranks: values of --arith")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--requests", over.requests, "With --over-ranks: requests of random prompts")
      ->capture_default_str();
  command
      .add_option("--temperature", over.sampling.temperature,
                  "With --over-ranks: sampling temperature; 0 is greedy")
      ->capture_default_str();
  command.add_option("--top-p", over.sampling.top_p, "With --over-ranks: as of generate")
      ->capture_default_str();
  command.add_option("--top-k", over.sampling.top_k, "With --over-ranks: as of generate")
      ->capture_default_str();
  command.add_option("--sampling-seed", over.sampling.seed, "With --over-ranks: of every request")
      ->capture_default_str();
}

}  // namespace

void add_bench_divergence(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "divergence", "Answer one prompt many times under a changing load; where the answers part");
  auto flags = std::make_shared<DivergenceFlags>();
  add_model_flags(*command, flags->model);
  command->add_option("--completions", flags->completions, "Answers to the prompt")
      ->capture_default_str();
  command->add_option("--tokens", flags->tokens, "Tokens of each answer")->capture_default_str();
  command->add_option("--prompt-tokens", flags->prompt, "Random tokens of the prompt")
      ->capture_default_str();
  command->add_option("--max-num-seqs", flags->sequences, "Sequences of a step")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Of the prompt, the neighbours and the load")
      ->capture_default_str();
  auto over = std::make_shared<RankDivergence>();
  add_rank_divergence_flags(*command, *over);
  show_first(*command,
             {{"What is measured",
               {"--completions", "--tokens", "--prompt-tokens", "--max-num-seqs", "--seed",
                "--over-ranks"}},
              {"Model and machine",
               {"--load-format", "--device", "--threads", "--tensor-parallel-size", "--json"}}});
  command->callback([&action, flags, over] {
    action = [flags, over] {
      use_made_model(flags->model, "tiny");
      if (over->ranks.empty()) return run_divergence(*flags);
      over->model = flags->model;
      over->tokens = flags->tokens;
      over->prompt = flags->prompt;
      over->seed = flags->seed;
      return run_rank_divergence(*over);
    };
  });
}

}  // namespace invar::cli
