// invar bench divergence --ranks 1,2,4 --batches 8,16: the same requests over tensor-parallel sizes
// and batches, for several arithmetics side by side: how many different answers, how far
// probabilities are apart, where answers part first. After "Deterministic Inference Across Tensor
// Parallel Sizes That Eliminates Training-Inference Mismatch", table 2.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "bench_divergence.h"

namespace invar::cli {

namespace {

// The answer to one request, in one setting.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> probabilities;  // of its tokens, before sampling's filters
  Digest logits{};
};
using Answers = std::vector<Answer>;  // by request

class Answering final : public OutputSink {
 public:
  explicit Answering(int requests) : answers(static_cast<size_t>(requests)) {}
  void on_token(const TokenOutput& output) override {
    if (output.error) fail("request {} failed: {}", output.request, output.error);
    Answer& answer = answers[static_cast<size_t>(output.request)];
    answer.tokens.push_back(output.token);
    answer.probabilities.push_back(std::exp(output.logprobs->logprob));
    answer.logits = output.logits_hash;
  }
  Answers answers;
};

// One row of a table: an arithmetic over every setting.
struct Side {
  std::string arithmetic, identity;
  double unique_answers = 0;  // of a request, mean
  size_t most_unique = 0, most_logits = 0;
  double probability_gap = 0;  // largest, where the tokens before are the same
  int first_difference = -1;   // the least index of a token that differs; -1: none does
};

std::vector<Request> requests_of(const RankDivergence& flags, int vocab) {
  std::mt19937 random(flags.seed);
  std::vector<Request> requests(static_cast<size_t>(flags.requests));
  for (int i = 0; i < flags.requests; ++i) {
    std::vector<int32_t> prompt;
    const int length = 1 + static_cast<int>(random() % static_cast<uint32_t>(2 * flags.prompt));
    for (int k = 0; k < length; ++k)
      prompt.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    requests[i].id = i;
    requests[i].prompt = std::move(prompt);
    requests[i].params = flags.sampling;
    requests[i].params.max_tokens = flags.tokens;
    requests[i].params.ignore_eos = true;
    requests[i].params.logprobs = 0;
  }
  return requests;
}

// All requests, up to `batch` of them at the same time, prompts in chunks of 4 x batch rows.
Answers answers_of(const std::shared_ptr<Model>& model, const RankDivergence& flags, int batch) {
  EngineOptions options;
  options.scheduler.max_num_seqs = batch;
  options.scheduler.max_num_batched_tokens = 4 * batch;
  options.scheduler.max_model_len = 2 * flags.prompt + flags.tokens;
  Instance instance({.model = model->options(), .engine = options}, model);
  Engine& engine = instance.engine();
  for (Request& request : requests_of(flags, model->spec().vocab)) engine.add(std::move(request));
  Answering answering(flags.requests);
  while (engine.has_work()) engine.step(answering);
  return std::move(answering.answers);
}

// Compares the settings' answers to one request.
void compare(const std::vector<Answers>& settings, size_t request, Side& side) {
  std::set<std::vector<int32_t>> unique;
  std::set<Digest> logits;
  const Answer& first = settings[0][request];
  for (const Answers& answers : settings) {
    const Answer& answer = answers[request];
    unique.insert(answer.tokens);
    logits.insert(answer.logits);
    for (size_t i = 0; i < first.tokens.size(); ++i) {
      if (answer.tokens[i] != first.tokens[i]) {
        const int at = static_cast<int>(i);
        side.first_difference =
            side.first_difference < 0 ? at : std::min(side.first_difference, at);
        break;
      }
      side.probability_gap = std::max<double>(
          side.probability_gap, std::abs(answer.probabilities[i] - first.probabilities[i]));
    }
  }
  side.unique_answers += static_cast<double>(unique.size());
  side.most_unique = std::max(side.most_unique, unique.size());
  side.most_logits = std::max(side.most_logits, logits.size());
}

Side measure(const RankDivergence& flags, const std::string& arithmetic) {
  Side side{.arithmetic = arithmetic};
  std::vector<Answers> settings;
  ProgressLine progress(!flags.model.json);
  for (const int ranks : flags.ranks) {
    ModelOptions options = resolved(flags.model);
    options.arithmetic = arithmetic;
    options.ranks = ranks;
    const std::shared_ptr<Model> model = open_model({.model = options});
    if (side.identity.empty()) side.identity = model->identity();
    for (const int batch : flags.batches) {
      progress.show_share(arithmetic, static_cast<double>(settings.size()),
                          static_cast<double>(flags.ranks.size() * flags.batches.size()),
                          "settings");
      settings.push_back(answers_of(model, flags, batch));
    }
  }
  progress.clear();
  for (size_t i = 0; i < settings[0].size(); ++i) compare(settings, i, side);
  side.unique_answers /= static_cast<double>(settings[0].size());
  return side;
}

json::Value to_json(const Side& side) {
  return json::Object{
      {"arithmetic", side.arithmetic},
      {"identity", side.identity},
      {"unique_answers_mean", side.unique_answers},
      {"unique_answers_most", static_cast<int64_t>(side.most_unique)},
      {"unique_logits_most", static_cast<int64_t>(side.most_logits)},
      {"probability_gap", side.probability_gap},
      {"first_difference",
       side.first_difference < 0 ? json::Value{} : json::Value(side.first_difference)}};
}

void print(const std::vector<Side>& sides) {
  fmt::print("  {:<16}{:>16}{:>8}{:>16}{:>18}{:>14}\n", "arithmetic", "unique answers", "most",
             "unique logits", "probability gap", "parts at");
  for (const Side& side : sides)
    fmt::print(
        "  {:<16}{:>16.2f}{:>8}{:>16}{:>18.2e}{:>14}\n", side.arithmetic, side.unique_answers,
        side.most_unique, side.most_logits, side.probability_gap,
        side.first_difference < 0 ? "nowhere" : fmt::format("token {}", side.first_difference));
}

void check(const RankDivergence& flags) {
  if (flags.requests < 1 || flags.tokens < 1 || flags.prompt < 1 ||
      std::ranges::min(flags.batches) < 1 || std::ranges::min(flags.ranks) < 1)
    fail_usage("expected requests, tokens, prompt tokens, batches and ranks of 1 or more");
}

}  // namespace

int run_rank_divergence(const RankDivergence& flags) {
  check(flags);
  std::vector<Side> sides;
  for (const std::string& arithmetic : flags.arithmetics)
    sides.push_back(measure(flags, arithmetic));
  if (flags.model.json) {
    json::Array list;
    for (const Side& side : sides) list.push_back(to_json(side));
    fmt::print("{}\n", json::dump(json::Object{{"model", resolved(flags.model).model},
                                               {"sides", std::move(list)}},
                                  2));
  } else {
    fmt::print("{}: {} requests, {} tokens each, ranks {} x batches {}\n\n",
               resolved(flags.model).model, flags.requests, flags.tokens,
               fmt::join(flags.ranks, ","), fmt::join(flags.batches, ","));
    print(sides);
  }
  // Only the named orders promise something.
  const bool holds = std::ranges::all_of(sides, [](const Side& side) {
    return side.most_logits == 1 || side.arithmetic.starts_with("control");
  });
  return holds ? 0 : 1;
}

}  // namespace invar::cli
