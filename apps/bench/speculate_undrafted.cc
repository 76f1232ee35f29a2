#include "speculate_undrafted.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "drafters/make_proposer.h"
#include "median.h"
#include "speculative/forwarding_proposer.h"

namespace invar::cli {

namespace {

// Drafts for requests of even ids alone.
class ForEven final : public ForwardingProposer {
 public:
  using ForwardingProposer::ForwardingProposer;

  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    asked_.clear();
    for (const DraftRequest& request : requests)
      if (request.id % 2 == 0) asked_.push_back(request);
    answered_.assign(asked_.size(), {});
    inner().propose(asked_, answered_);
    for (size_t i = 0, next = 0; i < requests.size(); ++i)
      if (requests[i].id % 2 == 0) std::swap(trees[i], answered_[next++]);
  }

 private:
  std::vector<DraftRequest> asked_;
  std::vector<DraftTree> answered_;
};

struct KeepTimes final : OutputSink {
  void on_token(const TokenOutput& output) override {
    answers[output.request].push_back(output.token);
  }
  AnswerTokens answers;
};

struct Way {
  std::string config;  // empty: plain
  std::unique_ptr<Instance> instance;
  AnswerTokens answers;            // to those without drafts, of the last round
  std::vector<double> p50s, p99s;  // of each round, seconds
  int64_t drafts = 0;
};

Way make_way(const std::shared_ptr<Model>& model, const std::string& config,
             const UndraftedSpec& spec) {
  const int sequences = spec.undrafted + spec.speculating;
  InstanceOptions options{
      .model = model->options(),
      .engine = {.kv_bytes = int64_t{1} << 30, .prefix_caching = false},
  };
  SchedulerOptions& scheduler = options.engine.scheduler;
  scheduler.max_num_seqs = sequences;
  scheduler.max_num_batched_tokens = 512 + 64 * sequences;
  scheduler.max_model_len = std::min(1024, model->spec().max_positions);
  if (!config.empty())
    options.proposer = [&](Model& target) {
      const SpeculativeConfig parsed = config_of({.json = config});
      auto drafter = make_drafter(parsed, target,
                                  {.max_sequences = sequences, .context = scheduler.max_model_len});
      return with_lengths(std::make_unique<ForEven>(std::move(drafter)), parsed);
    };
  return {.config = config, .instance = std::make_unique<Instance>(options, model)};
}

double quantile_of(std::vector<double>& sorted, double share) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(share * double(sorted.size() - 1))];
}

// Those without drafts have odd ids and answers of so many tokens; the others go on for longer than
// that.
void add_requests(Engine& engine, std::span<const std::vector<int32_t>> prompts,
                  const UndraftedSpec& spec) {
  const int sequences = std::max(spec.undrafted, spec.speculating);
  for (int i = 0; i < 2 * sequences; ++i) {
    const bool is_undrafted = i % 2;
    if (i / 2 >= (is_undrafted ? spec.undrafted : spec.speculating)) continue;
    Request request{.id = i, .hash_logits = false};
    request.prompt = prompts[static_cast<size_t>(i) % prompts.size()];
    request.params.temperature = 0;
    request.params.max_tokens =
        is_undrafted ? spec.tokens
                     : engine.max_model_len() - static_cast<int>(request.prompt.size());
    engine.add(std::move(request));
  }
}

// A round: until the first without drafts has ended, every step that computes no prompt is a gap
// between two tokens of each of them.
void run(Way& way, std::span<const std::vector<int32_t>> prompts, const UndraftedSpec& spec) {
  Engine& engine = way.instance->engine();
  add_requests(engine, prompts, spec);
  KeepTimes sink;
  std::vector<double> gaps;
  while (std::ssize(sink.answers[1]) < spec.tokens) {
    const Timer timer;
    engine.step(sink);
    if (engine.last_step().work.prompt_rows == 0) gaps.push_back(timer.seconds());
    way.drafts += engine.last_step().drafts;
  }
  for (int i = 0; i < 2 * std::max(spec.undrafted, spec.speculating); ++i) engine.abort(i);
  std::erase_if(sink.answers, [](const auto& answer) { return answer.first % 2 == 0; });
  way.answers = std::move(sink.answers);
  std::ranges::sort(gaps);
  way.p50s.push_back(quantile_of(gaps, 0.5));
  way.p99s.push_back(quantile_of(gaps, 0.99));
}

}  // namespace

int print_undrafted(const std::shared_ptr<Model>& model,
                    std::span<const std::vector<int32_t>> prompts, const UndraftedSpec& spec) {
  std::vector<Way> ways;
  ways.push_back(make_way(model, "", spec));
  for (const std::string& config : spec.configs) ways.push_back(make_way(model, config, spec));
  for (int round = -1; round < spec.rounds; ++round) {  // the first one warms
    for (Way& way : ways) {
      run(way, prompts, spec);
      if (way.answers != ways[0].answers) fail("{} changed an answer without drafts", way.config);
      if (round < 0) way.p50s.clear(), way.p99s.clear(), way.drafts = 0;
    }
  }
  fmt::print(
      "{} without drafts beside {} sequences that speculate, ms between tokens of one without "
      "drafts\n",
      spec.undrafted, spec.speculating);
  fmt::print("{:>8} {:>8} {:>12} {:>8}   {}\n", "P50", "P99", "P99 x plain", "drafts", "method");
  for (const Way& way : ways) {
    std::vector<double> ratios;
    for (size_t i = 0; i < way.p99s.size(); ++i) ratios.push_back(way.p99s[i] / ways[0].p99s[i]);
    fmt::print("{:8.3f} {:8.3f} {:12.3f} {:8}   {}\n", 1e3 * median(way.p50s),
               1e3 * median(way.p99s), median(ratios), way.drafts,
               way.config.empty() ? "plain" : way.config);
  }
  return 0;
}

}  // namespace invar::cli
