// invar train: a model from a recipe, the same bits on any machine.
#include <fmt/format.h>

#include "recipe_command.h"
#include "train/training_run.h"

namespace invar::cli {

namespace {

struct TrainFlags : RecipeFlags {
  RunOptions run;
};

std::string describe(const RunProgress& p) {
  const auto left = static_cast<int64_t>(p.seconds_left);
  std::string text =
      fmt::format("step {} of {}, loss {:.4f}, {:.0f} tok/s, {}:{:02} left", p.report.step, p.steps,
                  p.report.loss, p.tokens_per_second, left / 60, left % 60);
  if (p.held_out_loss >= 0) text += fmt::format(", held out {:.4f}", p.held_out_loss);
  if (const MtpScore& mtp = p.held_out_mtp; mtp.count > 0)
    text += fmt::format(", one further {:.4f}, accepted {:.3f}",
                        mtp.loss / static_cast<double>(mtp.count),
                        static_cast<double>(mtp.agreed) / static_cast<double>(mtp.count));
  return text;
}

int run_train(TrainFlags flags) {
  const Recipe recipe = read_recipe(flags.recipe);
  if (flags.run.output.empty()) flags.run.output = "out/" + recipe.name;
  RunProgressLines lines(flags.json);
  flags.run.progress = [&](const RunProgress& p) { lines.show(describe(p), p.held_out_loss >= 0); };
  stop_on_signals(flags.run);
  const RunResult result = run_training(recipe, flags.run);
  lines.clear();
  if (result.stopped) return say_stopped(flags.run, result.steps);
  if (flags.json)
    fmt::print("{}\n", json::dump(json::Object{{"output", flags.run.output},
                                               {"steps", result.steps},
                                               {"weights", result.weights_digest}},
                                  2));
  else
    fmt::print("{}: {} steps, weights {}\n", flags.run.output, result.steps, result.weights_digest);
  return 0;
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a model from a recipe, or resume the run that the same command started");
  auto flags = std::make_shared<TrainFlags>();
  add_recipe_flags(*command, *flags, flags->run, "recipes/story.toml");
  command->callback([&action, flags] { action = [flags] { return run_train(*flags); }; });
}

}  // namespace invar::cli
