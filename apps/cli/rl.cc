// invar rl: reinforcement learning by a recipe; the sampler is the engine, the bits the trainer's.
#include <fmt/format.h>

#include "recipe_command.h"
#include "train/rl/experiment.h"

namespace invar::cli {

namespace {

struct RlFlags : RecipeFlags {
  SpeculationFlags speculation;
  std::optional<uint64_t> seed;
  rl::RlOptions run;
};

std::string describe(const rl::RlProgress& p) {
  const auto left = static_cast<int64_t>(p.seconds_left);
  std::string text = fmt::format(
      "step {} of {}, reward {:.3f}, KL {:.3g}, entropy {:.3f}, {:.0f} tok/s, {}:{:02} left",
      p.report.step, p.steps, p.reward, p.mismatch.k3, p.entropy, p.tokens_per_second, left / 60,
      left % 60);
  if (p.drafts.tokens > 0)
    text += fmt::format(
        ", {:.0f} % of the drafts accepted",
        100.0 * static_cast<double>(p.drafts.accepted) / static_cast<double>(p.drafts.tokens));
  if (p.evaluation >= 0) text += fmt::format(", held out {:.3f}", p.evaluation);
  return text;
}

void print_line(const std::string& text) {
  write_out(text + '\n');
}

void print_experiment(const std::string& output, const std::vector<rl::VariantResult>& results) {
  print_line(
      "| run | held out, first | last | reward, last tenth | mean k3 | largest difference | "
      "clip fraction | routes that differ | weights |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
  for (const rl::VariantResult& v : results)
    print_line(fmt::format(
        "| {} | {:.3f} | {:.3f} | {:.3f} | {:.3g} | {:.3g} | {:.3g} | {} | {} |", v.name,
        v.result.first_evaluation, v.result.last_evaluation, v.last_reward, v.mean_k3,
        v.largest_difference, v.clip_fraction,
        v.different_routes < 0 ? "-" : fmt::format("{:.3g} %", 100 * v.different_routes),
        v.result.weights_digest.substr(0, 16)));
  print_line(output + "/experiment.svg");
}

json::Value to_json(const rl::RlResult& result) {
  return json::Object{{"steps", result.steps},
                      {"first_evaluation", result.first_evaluation},
                      {"last_evaluation", result.last_evaluation},
                      {"weights", result.weights_digest}};
}

json::Value to_json(const std::vector<rl::VariantResult>& results) {
  json::Array runs;
  for (const rl::VariantResult& v : results) {
    json::Value run = to_json(v.result);
    run.set("name", v.name);
    run.set("last_reward", v.last_reward);
    run.set("mean_k3", v.mean_k3);
    run.set("largest_difference", v.largest_difference);
    run.set("clip_fraction", v.clip_fraction);
    if (v.different_routes >= 0) run.set("different_routes", v.different_routes);
    runs.push_back(std::move(run));
  }
  return json::Object{{"runs", std::move(runs)}};
}

int run_experiment(const rl::RlRecipe& recipe, const RlFlags& flags, RunProgressLines& lines) {
  const auto started = [&](const std::string& name) {
    lines.clear();
    if (!flags.json) print_line(name);
  };
  const auto results = rl::run_experiment(recipe, flags.run, started);
  lines.clear();
  if (flags.run.stops()) return say_stopped(flags.run, -1);
  if (flags.json)
    print_line(json::dump(to_json(results), 2));
  else
    print_experiment(flags.run.output, results);
  return 0;
}

// The proposer for the sampler. The weights of a module of multi-token prediction are not trained
// and not handed over, and acceptance by rejection would show in the answers.
SpeculativeConfig speculation_of(const SpeculationFlags& flags) {
  const SpeculativeConfig config = config_of(flags);
  if (config.method == DraftMethod::mtp || config.rejection)
    fail_usage("invar rl: {} is not supported for rollouts; use another method, accepted coupled",
               config.rejection ? "\"acceptance\": \"rejection\"" : "the method mtp");
  return config;
}

int run_rl(RlFlags flags) {
  rl::RlRecipe recipe = rl::read_rl_recipe(flags.recipe);
  if (flags.seed) recipe.seed = *flags.seed;
  if (flags.run.output.empty()) flags.run.output = "out/" + recipe.name;
  flags.run.speculation = speculation_of(flags.speculation);
  RunProgressLines lines(flags.json);
  flags.run.progress = [&](const rl::RlProgress& p) { lines.show(describe(p), p.evaluation >= 0); };
  stop_on_signals(flags.run);
  if (!recipe.runs.empty()) return run_experiment(recipe, flags, lines);
  const rl::RlResult result = rl::run_rl(recipe, flags.run);
  lines.clear();
  if (result.stopped) return say_stopped(flags.run, result.steps);
  if (flags.json) {
    json::Value v = to_json(result);
    v.set("output", flags.run.output);
    print_line(json::dump(v, 2));
    return 0;
  }
  print_line(fmt::format("{}: {} steps, reward on held-out problems {:.3f} -> {:.3f}, weights {}",
                         flags.run.output, result.steps, result.first_evaluation,
                         result.last_evaluation, result.weights_digest));
  return 0;
}

}  // namespace

void add_rl(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "rl",
      "Run reinforcement learning from a recipe, or resume the run that the same command started");
  auto flags = std::make_shared<RlFlags>();
  add_recipe_flags(*command, *flags, flags->run, "recipes/rl.toml");
  add_speculation_flags(*command, flags->speculation);
  command->add_option("--seed", flags->seed, "Seed, instead of the recipe's");
  command->callback([&action, flags] { action = [flags] { return run_rl(*flags); }; });
}

}  // namespace invar::cli
