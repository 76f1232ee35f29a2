// invar bench speculate: plain and speculative decoding in turn, on stories and on copying.
#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cli/help_format.h"
#include "kernels/peaks.h"
#include "median.h"
#include "speculate_host_time.h"
#include "speculate_report.h"
#include "speculate_undrafted.h"
#include "train/corpus/corpus.h"

namespace invar::cli {

namespace {

struct BenchSpeculateFlags {
  ModelFlags model;
  std::vector<std::string> configs;
  std::vector<int> batches = {1};
  std::vector<std::string> tasks = {"story", "copy"};
  std::vector<double> replayed;  // shares of right tokens
  int replayed_tokens = 6;
  bool replay_adapts = false;
  std::string replay_pays;
  int rounds = 3, answer = 96;
  double temperature = 0;
  std::string html;
  bool host_time = false;
  int undrafted = 0;
};

// A kind of work.
struct Task {
  std::string name;
  std::vector<std::string> prompts;
};

constexpr int kMostGroups = 8;     // of requests in a round
constexpr int kPrompts = 16;       // of a task
constexpr size_t kBeginning = 80;  // characters of a story that are given

std::string beginning_of(const std::string& story) {
  return story.substr(0, story.rfind(' ', kBeginning));
}

// The task that the bundled model was trained for, by documents that it was not trained on. Another
// model goes on with them, too.
Task held_out(corpus::Kind kind) {
  Task task{.name = corpus::kKindNames[static_cast<size_t>(kind)]};
  for (int64_t i = 0; std::ssize(task.prompts) < kPrompts; ++i) {
    const corpus::Sample sample =
        corpus::make_sample(1, corpus::Split::held_out, i, corpus::bit_of(kind));
    task.prompts.push_back(sample.turns.empty() ? beginning_of(sample.story)
                                                : corpus::prompt_of(sample, 0));
  }
  return task;
}

// The task that suits prompt lookup: answers that repeat the question.
Task copies() {
  const std::vector<std::string> asked = {
      "Copy this list.\n- orange doll\n- red lantern\n- 62\n- Paul\n- blue kite",
      "Copy this table.\n| name | color | count |\n| --- | --- | --- |\n| Lily | blue | 25 |\n"
      "| Anna | white | 12 |\n| Finn | black | 9 |",
      "Copy this list.\n- Willow\n- 45\n- green drum\n- Nora\n- 61",
      "Copy this table.\n| name | color | count |\n| --- | --- | --- |\n| Sam | red | 3 |\n"
      "| Clara | green | 31 |\n| Zoe | brown | 18 |"};
  Task task{.name = "copy"};
  for (const std::string& text : asked)
    task.prompts.push_back("<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n");
  return task;
}

Task task_of(const std::string& name) {
  if (name == "copy") return copies();
  const auto kind = std::ranges::find(corpus::kKindNames, name);
  return held_out(static_cast<corpus::Kind>(kind - corpus::kKindNames.begin()));
}

std::vector<Request> requests_of(const Task& task, const Model& model, const Tokenizer& tokenizer,
                                 int batch, const BenchSpeculateFlags& flags) {
  std::vector<Request> requests;
  for (int i = 0; i < batch; ++i) {
    Request request{.hash_logits = false};
    request.prompt = tokenizer.encode(task.prompts[static_cast<size_t>(i) % task.prompts.size()]);
    request.params.max_tokens = flags.answer;
    request.params.temperature = flags.temperature;
    request.params.seed = static_cast<uint64_t>(i);
    add_end_tokens(request.params, model, tokenizer);
    requests.push_back(std::move(request));
  }
  return requests;
}

// The ways of a task and batch, plain first.
std::vector<std::unique_ptr<Arm>> make_arms(const std::shared_ptr<Model>& model, int batch,
                                            const BenchSpeculateFlags& flags) {
  std::vector<std::unique_ptr<Arm>> arms;
  arms.push_back(std::make_unique<Arm>(model, "", batch));
  for (const std::string& config : flags.configs)
    arms.push_back(std::make_unique<Arm>(model, config, batch));
  for (const double right : flags.replayed) {
    const ReplaySpec spec{.right = right,
                          .tokens = flags.replayed_tokens,
                          .drafter = flags.replay_pays,
                          .adaptive = flags.replay_adapts};
    arms.push_back(std::make_unique<Arm>(
        model,
        fmt::format("replay: {:.1f} % right, K {}{}, pays {}", 100 * right, spec.tokens,
                    spec.adaptive ? ", adaptive" : "",
                    spec.drafter.empty() ? "a layer and the head" : spec.drafter),
        batch, &spec));
  }
  return arms;
}

// The arms take turns with every step, so that a machine that others use is as fast for one as for
// the other. An arm that replays plain answers begins when they are there.
void run_in_turn(std::span<const std::unique_ptr<Arm>> arms, const std::vector<Request>& requests,
                 bool plain_first) {
  arms[0]->begin(requests, {});
  while (plain_first && arms[0]->step()) {
  }
  for (const auto& arm : arms.subspan(1)) arm->begin(requests, arms[0]->answers());
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (const auto& arm : arms) goes_on |= arm->step();
  }
}

// Counts the answers that differ, to the same requests in the same order; their ids differ.
int64_t count_changed(const AnswerTokens& answers, const AnswerTokens& plain) {
  int64_t changed = 0;
  for (auto a = answers.begin(), b = plain.begin(); a != answers.end(); ++a, ++b)
    changed += a->second != b->second;
  return changed;
}

// One task at one batch: every arm in turn, round after round, one group of requests after the
// other.
std::vector<SpeculateRow> run_task(const Task& task, int batch, const std::shared_ptr<Model>& model,
                                   const Tokenizer& tokenizer, const BenchSpeculateFlags& flags) {
  const auto arms = make_arms(model, batch, flags);
  std::vector<std::vector<double>> ratios(arms.size()), cpu_ratios(arms.size()), rates(arms.size());
  std::vector<Measured> totals(arms.size());
  const int groups = std::clamp(static_cast<int>(task.prompts.size()) / batch, 1, kMostGroups);
  for (int round = -1; round < flags.rounds; ++round) {  // the first one warms
    std::vector<Measured> of_round(arms.size());
    for (int group = 0; group < groups; ++group) {
      Task part = task;
      std::rotate(part.prompts.begin(),
                  part.prompts.begin() + group * batch % std::ssize(part.prompts),
                  part.prompts.end());
      const auto requests = requests_of(part, *model, tokenizer, batch, flags);
      run_in_turn(arms, requests, !flags.replayed.empty());
      for (size_t a = 0; a < arms.size(); ++a) of_round[a].add(arms[a]->end());
      for (size_t a = 0; a < arms.size(); ++a) {
        const int64_t changed = count_changed(arms[a]->answers(), arms[0]->answers());
        if (changed > 0 && !arms[a]->may_change_answers())
          fail("{} changed an answer of the task {}, which no drafter may", arms[a]->config(),
               task.name);
        of_round[a].changed += changed;
      }
    }
    for (size_t a = 0; round >= 0 && a < arms.size(); ++a) {
      totals[a].add(of_round[a]);
      rates[a].push_back(of_round[a].rate());
      ratios[a].push_back(of_round[a].rate() / of_round[0].rate());
      cpu_ratios[a].push_back(of_round[a].cpu_rate() / of_round[0].cpu_rate());
    }
  }
  const double plain_step = batch / median(rates[0]);
  std::vector<SpeculateRow> rows;
  for (size_t a = 0; a < arms.size(); ++a) {
    const Adaptive* adaptive = arms[a]->adaptive();
    const double rows_per_step = totals[a].rows_per_step();
    rows.push_back(
        {.task = task.name,
         .batch = batch,
         .config = arms[a]->config(),
         .rate = median(rates[a]),
         .over_plain = median(ratios[a]),
         .cpu_over_plain = median(cpu_ratios[a]),
         .total = std::move(totals[a]),
         .plain_step = plain_step,
         .drafter_bytes = arms[a]->drafter_bytes(),
         .adaptive_estimate = adaptive && adaptive->estimates().measured > 0
                                  ? adaptive->estimates().predicted / adaptive->estimates().measured
                                  : 0,
         // A weight is two bytes, and two operations with each row.
         .operations_per_byte = rows_per_step});
  }
  return rows;
}

Limits measure_limits(Model& model) {
  if (!model.device().is_host()) return {};
  const std::string_view set = model.instruction_set();
  return {.operations = measure_product_peak(model.pool(), set == "scalar" ? "avx2" : set),
          .bytes = measure_read_bandwidth(model)};
}

void check(const BenchSpeculateFlags& flags) {
  if (flags.rounds < 1 || flags.answer < 2)
    fail_usage("expected rounds of 1 or more and answers of 2 tokens or more, found {} and {}",
               flags.rounds, flags.answer);
  for (const int batch : flags.batches)
    if (batch < 1 || batch > 256)
      fail_usage("expected batches from 1 to 256 sequences, found {}", batch);
  for (const double right : flags.replayed)
    if (right < 0 || right > 1)
      fail_usage("expected --replay as shares from 0 to 1, found {}", right);
}

// The methods that need no other model, where none was named.
void add_methods(BenchSpeculateFlags& flags, const ModelOptions& options) {
  if (!flags.configs.empty() || !flags.replayed.empty()) return;
  flags.configs = {R"({"method": "ngram"})", R"({"method": "suffix"})",
                   R"({"method": "lookahead"})", R"({"method": "early_exit"})"};
  if (read_model_config(options).spec.mtp_layers > 0)
    flags.configs.push_back(R"({"method": "mtp"})");
}

// Others' drafts beside sequences without: stories, for each batch of others.
int run_undrafted(const BenchSpeculateFlags& flags, const std::shared_ptr<Model>& model) {
  const Tokenizer tokenizer = open_tokenizer(*model);
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& prompt : task_of("story").prompts)
    prompts.push_back(tokenizer.encode(prompt));
  for (const int batch : flags.batches)
    print_undrafted(model, prompts,
                    {.undrafted = flags.undrafted,
                     .speculating = batch,
                     .tokens = flags.answer,
                     .rounds = flags.rounds,
                     .configs = flags.configs});
  return 0;
}

int run_bench_speculate(BenchSpeculateFlags flags) {
  check(flags);
  const ModelOptions options = resolved(flags.model);
  add_methods(flags, options);
  SpeculativeConfig loaded_for;  // how drafts are accepted is each engine's
  for (const std::string& config : flags.configs)
    if (parse_speculative_config(config).method == DraftMethod::mtp)
      loaded_for.method = DraftMethod::mtp;  // the others need no more of the model
  const std::shared_ptr<Model> model =
      open_model({.model = options, .engine = {}, .speculation = loaded_for});
  if (flags.host_time) return print_host_time(model);
  if (flags.undrafted > 0) return run_undrafted(flags, model);
  const Tokenizer tokenizer = open_tokenizer(*model);
  const Limits limits = measure_limits(*model);
  const std::string about = fmt::format(
      "{} ({}) on {}, {} tokens an answer, temperature {}, medians of {} rounds, each way in turn; "
      "ridge {:.1f} operations per byte",
      options.model, model->identity(), processor_name(), flags.answer, flags.temperature,
      flags.rounds, limits.ridge());
  if (!flags.model.json) fmt::print("{}\n{}", about, heading());
  std::vector<SpeculateRow> all;
  json::Array values;
  for (const std::string& task : flags.tasks)
    for (const int batch : flags.batches) {
      const auto rows = run_task(task_of(task), batch, model, tokenizer, flags);
      const double plain = rows[0].total.predicted_rate();
      for (const SpeculateRow& row : rows) {
        if (!flags.model.json) fmt::print("{}", line_of(row, plain));
        values.push_back(to_json(row, plain));
        all.push_back(row);
      }
      std::fflush(stdout);
    }
  if (flags.model.json) fmt::print("{}\n", json::dump(values, 2));
  if (!flags.html.empty()) write_file_atomically(flags.html, speculate_page(all, about, limits));
  return 0;
}

}  // namespace

void add_bench_speculate(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "speculate",
      "Speculative decoding beside plain, by method: tokens per second, acceptance, "
      "accepted length; fails if an answer changes");
  auto flags = std::make_shared<BenchSpeculateFlags>();
  add_model_flags(*command, flags->model);
  command->add_option("--speculative-config", flags->configs,
                      "A method as vLLM's JSON; given several times. Without it every method that "
                      "needs no other model");
  command->add_option("--batches", flags->batches, "Sequences at the same time")->delimiter(',');
  command->add_option("--rounds", flags->rounds, "Rounds, of which medians are shown")
      ->capture_default_str();
  command->add_option("--tokens", flags->answer, "Tokens of an answer")->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0 is greedy")->capture_default_str();
  command->add_option("--tasks", flags->tasks, "copy, or kinds of held-out documents of the corpus")
      ->delimiter(',')
      ->check(
          CLI::IsMember({"copy", "story", "question", "request", "arithmetic", "copying", "talk"}))
      ->capture_default_str();
  command
      ->add_option("--replay", flags->replayed,
                   "Also a replaying proposer: it knows the plain answer, and this share of its "
                   "tokens is right; it computes the last layer and the head for each")
      ->delimiter(',');
  command->add_option("--replay-tokens", flags->replayed_tokens, "Tokens of a replayed draft")
      ->capture_default_str();
  command->add_option("--replay-pays", flags->replay_pays,
                      "A method as vLLM's JSON that the replaying proposer computes instead, and "
                      "whose drafts it throws away: what drafts of that cost and the given "
                      "acceptance gain, without a trained drafter");
  command->add_flag("--replay-adaptive", flags->replay_adapts,
                    "Adaptive lengths for the replaying proposer; with --replay 0, which is always "
                    "wrong, what adaptive lengths cost");
  command->add_option("--html", flags->html, "Write a page with the table and curves (HTML)");
  command->add_flag("--host-time", flags->host_time,
                    "Instead: the host's time a step for 64 sequences with drafts of 8 tokens");
  command
      ->add_option("--undrafted", flags->undrafted,
                   "Instead: the time between tokens of so many sequences without drafts, beside "
                   "--batches sequences with drafts")
      ->check(CLI::Range(0, 256));
  show_first(*command,
             {{"What is measured",
               {"--speculative-config", "--tasks", "--batches", "--tokens", "--temperature",
                "--rounds", "--html"}},
              {"Model and machine",
               {"--load-format", "--device", "--threads", "--tensor-parallel-size", "--json"}}});
  command->callback([&action, flags] { action = [flags] { return run_bench_speculate(*flags); }; });
}

}  // namespace invar::cli
