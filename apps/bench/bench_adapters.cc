// invar bench adapters: how fast sequences decode with low-rank adapters, beside the same without,
// in turn.
#include "base/error.h"
#include "base/timer.h"
#include "bench_prompt.h"
#include "cli/command.h"
#include "cli/help_format.h"
#include "made_adapters.h"
#include "median.h"
#include "weights/lora_adapter.h"

namespace invar::cli {

namespace {

constexpr int kDecodePrompt = 16, kDecodeAnswer = 24;

struct AdapterBenchFlags {
  ModelFlags model;
  std::vector<int> batches = {1, 8}, adapters = {1, 8};
  int rank = 16, rounds = 5;
};

class Nobody final : public OutputSink {
 public:
  void on_token(const TokenOutput&) override {}
};

// Tokens a second of `batch` sequences that decode with so many different adapters, 0: without.
double decode_rate(Engine& engine, const MadeAdapters& made, int batch, int adapters) {
  for (int i = 0; i < batch; ++i) {
    Request request{.id = i + 1, .hash_logits = false};
    request.prompt = bench_prompt(i, kDecodePrompt, engine.model().spec().vocab);
    request.params.temperature = 0;
    request.params.max_tokens = kDecodeAnswer;
    if (adapters > 0) request.adapter = made[i % adapters];
    engine.add(std::move(request));
  }
  Nobody sink;
  double seconds = 0;
  int steps = 0;
  while (engine.has_work()) {
    const Timer timer;
    engine.step(sink);
    if (engine.last_step().rows != batch || engine.last_step().samples != batch) continue;
    seconds += timer.seconds();
    ++steps;
  }
  return batch * steps / seconds;
}

int run_adapter_bench(AdapterBenchFlags flags) {
  use_made_model(flags.model, "bench-473m");
  const int most_batch = std::ranges::max(flags.batches), most = std::ranges::max(flags.adapters);
  const ModelOptions options = flags.model.options;
  const std::shared_ptr<Model> model = open_model({.model = options});
  const Timer making;
  const MadeAdapters made(model->spec(), model->adapter_user(), flags.rank, most);
  EngineOptions engine{.prefix_caching = false,
                       .adapters = {.most = most, .most_rank = flags.rank}};
  engine.scheduler.max_num_seqs = most_batch;
  engine.scheduler.max_num_batched_tokens = std::max(512, most_batch);
  engine.scheduler.max_model_len = kDecodePrompt + kDecodeAnswer + 1;
  Instance instance({.model = options, .engine = engine}, model);
  if (!flags.model.json)
    fmt::print(
        "{}, {}, adapters of rank {} beside every matrix of the layers, medians of {} rounds\n",
        options.model, model->identity(), flags.rank, flags.rounds);
  json::Array rows;
  for (const int batch : flags.batches)
    for (const int adapters : flags.adapters) {
      if (adapters > batch) continue;
      decode_rate(instance.engine(), made, batch, adapters);  // loads them
      std::vector<double> without, with, ratios;
      for (int round = 0; round < flags.rounds; ++round) {
        without.push_back(decode_rate(instance.engine(), made, batch, 0));
        with.push_back(decode_rate(instance.engine(), made, batch, adapters));
        ratios.push_back(with.back() / without.back());
      }
      rows.push_back(json::Object{{"batch", batch},
                                  {"adapters", adapters},
                                  {"tokens_per_second", median(with)},
                                  {"without", median(without)},
                                  {"ratio", median(ratios)}});
      if (!flags.model.json)
        fmt::print("  batch {:3}, {:3} adapters {:10.1f} tok/s, without {:10.1f}: {:.3f} x\n",
                   batch, adapters, median(with), median(without), median(ratios));
      std::fflush(stdout);
    }
  if (flags.model.json)
    fmt::print("{}\n", json::dump(json::Object{{"model", options.model},
                                               {"identity", model->identity()},
                                               {"rank", flags.rank},
                                               {"rows", std::move(rows)}},
                                  2));
  return 0;
}

}  // namespace

void add_bench_adapters(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "adapters",
      "Measure decoding with low-rank adapters beside decoding without (default: bench-473m with "
      "random weights)");
  auto flags = std::make_shared<AdapterBenchFlags>();
  add_model_flags(*command, flags->model);
  command->add_option("--batches", flags->batches, "Sequences that decode")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--adapters", flags->adapters, "Different adapters among them")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--rank", flags->rank, "Rank of the adapters")
      ->check(CLI::Range(1, static_cast<int>(kMostAdapterRank)))
      ->capture_default_str();
  command->add_option("--rounds", flags->rounds, "Rounds; the medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  show_first(*command,
             {{"What is measured", {"--batches", "--adapters", "--rank", "--rounds"}},
              {"Model and machine",
               {"--load-format", "--device", "--threads", "--tensor-parallel-size", "--json"}}});
  command->callback([&action, flags] { action = [flags] { return run_adapter_bench(*flags); }; });
}

}  // namespace invar::cli
