// invar train: a model or a drafter from a recipe, the same bits on any machine.
#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "collectives/mpi/mpi_group.h"
#include "recipe_command.h"
#include "train/drafter/drafter_run.h"
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

std::string describe(const DrafterProgress& p) {
  const auto left = static_cast<int64_t>(p.seconds_left);
  std::string text =
      fmt::format("step {} of {}, loss {:.4f}, {:.0f} tok/s, {}:{:02} left", p.report.step, p.steps,
                  mean_loss(p.report.levels[0]), p.tokens_per_second, left / 60, left % 60);
  if (p.held_out.empty()) return text;
  text += ", held out: right";
  for (const LevelScore& level : p.held_out) text += fmt::format(" {:.3f}", agreement(level));
  return text;
}

// A run's last words.
template <typename Result>
int say_result(const TrainFlags& flags, const Result& result) {
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

int run_train_drafter(TrainFlags flags) {
  const DrafterRecipe recipe = read_drafter_recipe(flags.recipe);
  if (flags.run.output.empty()) flags.run.output = "out/" + recipe.name;
  stop_on_signals(flags.run);
  DrafterRunOptions options{flags.run, {}};
  RunProgressLines lines(flags.json);
  options.progress = [&](const DrafterProgress& p) {
    lines.show(describe(p), !p.held_out.empty());
  };
  const DrafterRunResult result = run_drafter_training(recipe, options);
  lines.clear();
  return say_result(flags, result);
}

// Under mpirun or srun every process is a rank.
std::unique_ptr<Group> group_of_job(RunOptions& run) {
  const mpi::Launch launch = mpi::launch();
  if (launch.size == 1) return nullptr;
  if (run.ranks != 1 && run.ranks != launch.size)
    fail_usage("expected as many ranks as the launcher has processes, {}, found {}", launch.size,
               run.ranks);
  std::vector<int> peers(static_cast<size_t>(launch.size));
  std::iota(peers.begin(), peers.end(), 0);
  run.ranks = launch.size;
  auto group = mpi::make_group(mpi::Job::join(), launch.rank, std::move(peers));
  run.group = group.get();
  return group;
}

int run_train(TrainFlags flags) {
  if (is_drafter_recipe(flags.recipe) && mpi::launch().size > 1)
    fail_usage("a drafter is trained by one process, and the launcher started {}",
               mpi::launch().size);
  if (is_drafter_recipe(flags.recipe)) return run_train_drafter(std::move(flags));
  const Recipe recipe = read_recipe(flags.recipe);
  const std::unique_ptr<Group> group = group_of_job(flags.run);
  if (flags.run.output.empty()) flags.run.output = "out/" + recipe.name;
  RunProgressLines lines(flags.json);
  flags.run.progress = [&](const RunProgress& p) { lines.show(describe(p), p.held_out_loss >= 0); };
  stop_on_signals(flags.run);
  const RunResult result = run_training(recipe, flags.run);
  if (!flags.run.writes()) return 0;
  lines.clear();
  return say_result(flags, result);
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "train",
      "Train a model or a drafter from a recipe, or resume the run that the same command started");
  auto flags = std::make_shared<TrainFlags>();
  add_recipe_flags(*command, *flags, flags->run, "recipes/story.toml");
  command->callback([&action, flags] { action = [flags] { return run_train(*flags); }; });
}

}  // namespace invar::cli
