// invar bench speculate: plain and speculative decoding in turn, on stories and on copying.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/timer.h"
#include "command.h"

namespace invar::cli {

namespace {

struct BenchSpeculateFlags {
  ModelFlags model;
  std::vector<std::string> configs;
  std::vector<int> batches = {1};
  int rounds = 3, answer = 96;
  double temperature = 0;
};

// A kind of work: prompts of a text.
struct Task {
  const char* name;
  std::vector<std::string> prompts;
};

// What the bundled model learned to do: to tell stories, and to copy what a user shows it. Another
// model goes on with them, too.
std::vector<Task> tasks() {
  const std::vector<std::string> stories = {
      "Once upon a time there was a little owl named Sunny. She lived",
      "One windy day, there lived a cheerful rabbit named Finn. He",
      "On Monday, Clara and Sam went to the river.",
      "One night Alice heard a noise from the attic."};
  const std::vector<std::string> asked = {
      "Copy this list.\n- orange doll\n- red lantern\n- 62\n- Paul\n- blue kite",
      "Copy this table.\n| name | color | count |\n| --- | --- | --- |\n| Lily | blue | 25 |\n"
      "| Anna | white | 12 |\n| Finn | black | 9 |",
      "Copy this list.\n- Willow\n- 45\n- green drum\n- Nora\n- 61",
      "Copy this table.\n| name | color | count |\n| --- | --- | --- |\n| Sam | red | 3 |\n"
      "| Clara | green | 31 |\n| Zoe | brown | 18 |"};
  std::vector<std::string> copies;
  for (const std::string& text : asked)
    copies.push_back("<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n");
  return {{"story", stories}, {"copy", copies}};
}

using Answers = std::map<int64_t, std::vector<int32_t>>;  // by request

struct Keep final : OutputSink {
  void on_token(const TokenOutput& output) override {
    ++tokens;
    answers[output.request].push_back(output.token);
  }
  int64_t tokens = 0;
  Answers answers;
};

// Of the steps in which nothing but answers was computed.
struct Measured {
  double seconds = 0;
  int64_t tokens = 0, drafts = 0, draft_tokens = 0, accepted = 0;

  void add(const Measured& other) {
    seconds += other.seconds;
    tokens += other.tokens;
    drafts += other.drafts;
    draft_tokens += other.draft_tokens;
    accepted += other.accepted;
  }
  double rate() const { return static_cast<double>(tokens) / seconds; }
};

class Arm {
 public:
  Arm(Model& model, const std::string& config, int batch) : model_(model), config_(config) {
    EngineOptions options{.prefix_caching = false};
    options.scheduler.max_num_seqs = batch;
    options.scheduler.max_num_batched_tokens = 512 + 64 * batch;
    options.scheduler.max_model_len = std::min(1024, model.spec().max_positions);
    options.kv_bytes = int64_t{1} << 30;
    std::unique_ptr<Proposer> proposer;
    if (!config.empty())
      proposer = make_proposer(parse_speculative_config(config), model,
                               {.max_sequences = batch, .context = 1024});
    engine_ = std::make_unique<Engine>(model, options, nullptr, std::move(proposer));
  }

  // All requests at once.
  Measured run(const std::vector<Request>& requests) {
    for (Request request : requests) {
      request.id = next_id_++;
      engine_->add(std::move(request));
    }
    Measured measured;
    Keep sink;
    while (engine_->has_work()) {
      const int64_t before = sink.tokens;
      const Timer timer;
      engine_->step(sink);
      const StepStats& step = engine_->last_step();
      if (step.work.prompt_rows > 0) continue;
      measured.seconds += timer.seconds();
      measured.tokens += sink.tokens - before;
      measured.drafts += step.drafts;
      measured.draft_tokens += step.draft_tokens;
      measured.accepted += step.accepted_tokens;
    }
    answers_ = std::move(sink.answers);
    return measured;
  }

  const std::string& config() const { return config_; }
  // Of the last run.
  const Answers& answers() const { return answers_; }

 private:
  Model& model_;
  std::string config_;
  std::unique_ptr<Engine> engine_;
  int64_t next_id_ = 0;
  Answers answers_;
};

std::vector<Request> requests_of(const Task& task, const Model& model, const Tokenizer& tokenizer,
                                 int batch, const BenchSpeculateFlags& flags) {
  std::vector<Request> requests;
  for (int i = 0; i < batch; ++i) {
    Request request{.hash_logits = false};
    request.prompt = tokenizer.encode(task.prompts[static_cast<size_t>(i) % task.prompts.size()]);
    request.params.max_tokens = flags.answer;
    request.params.temperature = flags.temperature;
    request.params.seed = static_cast<uint64_t>(i);
    add_end_tokens(request.params, model);
    requests.push_back(std::move(request));
  }
  return requests;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// One task at one batch: every arm in turn, round after round, one group of requests after the
// other.
json::Array run_task(const Task& task, int batch, Model& model, const Tokenizer& tokenizer,
                     const BenchSpeculateFlags& flags) {
  std::vector<std::unique_ptr<Arm>> arms;
  arms.push_back(std::make_unique<Arm>(model, "", batch));
  for (const std::string& config : flags.configs)
    arms.push_back(std::make_unique<Arm>(model, config, batch));
  std::vector<std::vector<double>> ratios(arms.size()), rates(arms.size());
  std::vector<Measured> totals(arms.size());
  const int groups = std::max<int>(1, static_cast<int>(task.prompts.size()) / batch);
  for (int round = -1; round < flags.rounds; ++round) {  // the first one warms
    std::vector<Measured> of_round(arms.size());
    for (int group = 0; group < groups; ++group) {
      Task part = task;
      std::ranges::rotate(part.prompts, part.prompts.begin() + group * batch % 4);
      for (size_t a = 0; a < arms.size(); ++a)
        of_round[a].add(arms[a]->run(requests_of(part, model, tokenizer, batch, flags)));
      for (const auto& arm : arms)
        if (arm->answers() != arms[0]->answers())
          fail("{} changed an answer of the task {}, which no drafter may", arm->config(),
               task.name);
    }
    for (size_t a = 0; round >= 0 && a < arms.size(); ++a) {
      totals[a].add(of_round[a]);
      rates[a].push_back(of_round[a].rate());
      ratios[a].push_back(of_round[a].rate() / of_round[0].rate());
    }
  }
  json::Array rows;
  for (size_t a = 0; a < arms.size(); ++a) {
    const Measured& m = totals[a];
    const auto share = [](int64_t part, int64_t whole) {
      return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
    };
    rows.push_back(json::Object{{"task", task.name},
                                {"batch", batch},
                                {"config", arms[a]->config()},
                                {"tokens_per_second", median(rates[a])},
                                {"over_plain", median(ratios[a])},
                                {"acceptance", share(m.accepted, m.draft_tokens)},
                                {"accepted_length", 1 + share(m.accepted, m.drafts)}});
  }
  return rows;
}

void print_row(const json::Value& row) {
  const std::string& config = row.find("config")->as_string();
  fmt::print("{:6} {:5}  {:>9.1f} tok/s  {:>5.2f} x", row.find("task")->as_string(),
             row.find("batch")->as_integer(), row.find("tokens_per_second")->as_number(),
             row.find("over_plain")->as_number());
  if (config.empty())
    fmt::print("  {:27}plain\n", "");
  else
    fmt::print("  accepted {:5.1f} %  length {:4.2f}  {}\n",
               100 * row.find("acceptance")->as_number(), row.find("accepted_length")->as_number(),
               config);
  std::fflush(stdout);
}

int run_bench_speculate(BenchSpeculateFlags flags) {
  if (flags.rounds < 1 || flags.answer < 2)
    fail_usage("expected rounds of 1 or more and answers of 2 tokens or more, found {} and {}",
               flags.rounds, flags.answer);
  for (const int batch : flags.batches)
    if (batch < 1 || batch > 256)
      fail_usage("expected batches from 1 to 256 sequences, found {}", batch);
  use_bundled_model(flags.model);
  ModelOptions options = resolved(flags.model);
  const bool has_module = read_model_config(options).spec.mtp_layers > 0;
  if (flags.configs.empty()) {
    flags.configs = {R"({"method": "ngram"})", R"({"method": "suffix"})",
                     R"({"method": "lookahead"})", R"({"method": "early_exit"})"};
    if (has_module) flags.configs.push_back(R"({"method": "mtp"})");
  }
  for (const std::string& config : flags.configs)
    if (const auto parsed = parse_speculative_config(config); parsed.method == DraftMethod::mtp)
      options = with_drafter(options, parsed);
  Model model(options);
  const Tokenizer tokenizer = open_tokenizer(model);
  if (!flags.model.json)
    fmt::print(
        "{} ({}), {} tokens an answer, temperature {}, {} rounds, plain and drafted in turn\n",
        options.model, model.identity(), flags.answer, flags.temperature, flags.rounds);
  json::Array all;
  for (const Task& task : tasks())
    for (const int batch : flags.batches)
      for (json::Value& row : run_task(task, batch, model, tokenizer, flags)) {
        if (!flags.model.json) print_row(row);
        all.push_back(std::move(row));
      }
  if (flags.model.json) fmt::print("{}\n", json::dump(all, 2));
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
  command->callback([&action, flags] { action = [flags] { return run_bench_speculate(*flags); }; });
}

}  // namespace invar::cli
