// invar make-model: random weights of any family, size and seed as a model directory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "command.h"
#include "model/families/families.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::cli {

namespace {

struct MakeModelFlags {
  std::string preset = "tiny", directory;
  uint64_t seed = 1;
  SpecOverrides overrides;
  bool json = false;
};

int run_make_model(const MakeModelFlags& flags) {
  if (flags.directory.empty()) fail_usage("expected a directory, found an empty name");
  ModelConfig config;
  config.spec = override_spec(preset_spec(flags.preset), flags.overrides);
  const MadeTokenizer tokenizer = make_tokenizer(config.spec.vocab, flags.seed);
  config.bos_id = tokenizer.bos_id;
  config.eos_ids = {tokenizer.eos_id};
  ThreadPool pool(0);
  make_model(flags.directory, config, flags.seed, pool, tokenizer.texts.files());
  if (flags.json)
    fmt::print("{}\n", json::dump(json::Object{{"directory", flags.directory},
                                               {"preset", flags.preset},
                                               {"seed", std::to_string(flags.seed)}},
                                  2));
  else
    fmt::print("{}: {} with random weights, seed {}\n", flags.directory, flags.preset, flags.seed);
  return 0;
}

}  // namespace

void add_make_model(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("make-model", "Write a model directory with random weights");
  auto flags = std::make_shared<MakeModelFlags>();
  command->add_option("DIRECTORY", flags->directory, "Directory to write")->required();
  command->add_option("--preset", flags->preset, fmt::format("{}", fmt::join(preset_names(), ", ")))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Seed of the weights")->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  SpecOverrides& o = flags->overrides;
  command->add_option("--family", o.family, fmt::format("{}", fmt::join(family_names(), ", ")));
  command->add_option("--hidden", o.hidden, "Width of the residual stream");
  command->add_option("--layers", o.layers, "Number of layers");
  command->add_option("--heads", o.heads, "Number of query heads");
  command->add_option("--kv-heads", o.kv_heads, "Number of key/value heads");
  command->add_option("--head-dim", o.head_dim, "Size of a head");
  command->add_option("--ffn", o.ffn, "Width of the gated layer, or of an expert");
  command->add_option("--experts", o.experts, "Number of experts, where layers have some");
  command->add_option("--experts-per-token", o.chosen_experts, "Experts that a token goes through");
  command->add_option("--vocab", o.vocab, "Size of the vocabulary");
  command->add_option("--max-positions", o.max_positions, "Largest context length");
  command->add_option("--window", o.window, "Sliding window of every layer; 0 for none");
  command->add_option("--tied-head", o.tied_head, "Whether the head is the embedding");
  command->callback([&action, flags] { action = [flags] { return run_make_model(*flags); }; });
}

}  // namespace invar::cli
