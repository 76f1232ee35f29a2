// invar train: a model from a recipe, the same bits on any machine.
#include <fmt/format.h>

#include <unistd.h>

#include "base/error.h"
#include "command.h"
#include "number_flags.h"
#include "train/training_run.h"

namespace invar::cli {

namespace {

struct TrainFlags {
  std::string recipe;
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
  ProgressLine line;
  const bool on_terminal = isatty(STDERR_FILENO);
  flags.run.progress = [&](const RunProgress& p) {
    line.show(describe(p));
    const bool evaluated = p.held_out_loss >= 0;
    if (evaluated) {
      line.clear();
      fmt::print("{}\n", describe(p));
      std::fflush(stdout);
    } else if (!on_terminal && p.report.step % 10 == 0) {
      fmt::print("{}\n", describe(p));
      std::fflush(stdout);
    }
  };
  const RunResult result = run_training(recipe, flags.run);
  line.clear();
  fmt::print("{}: {} steps, weights {}\n", flags.run.output, result.steps, result.weights_digest);
  return 0;
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a model by a recipe, or go on where the same command was stopped");
  auto flags = std::make_shared<TrainFlags>();
  command->add_option("RECIPE", flags->recipe, "A recipe (TOML), such as recipes/story.toml")
      ->required();
  command->add_option("--output", flags->run.output,
                      "Where checkpoints, metrics, curves and the model go; default out/NAME");
  command->add_option("--threads", flags->run.threads, "Threads of each rank; 0: one per core")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--ranks", flags->run.ranks, "Data-parallel ranks in this process")
      ->capture_default_str();
  command
      ->add_option("--instruction-set", flags->run.instruction_set,
                   "auto, scalar, avx2, avx512 or amx: the same bits")
      ->capture_default_str();
  command->add_option("--until", flags->run.until, "Stop after this step with a checkpoint")
      ->check(at_least(0));
  command->callback([&action, flags] { action = [flags] { return run_train(*flags); }; });
}

}  // namespace invar::cli
