// invar train: a model from a recipe, the same bits on any machine.
#include <fmt/format.h>

#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "base/timer.h"
#include "command.h"
#include "number_flags.h"
#include "train/training_run.h"

namespace invar::cli {

namespace {

struct TrainFlags {
  std::string recipe;
  RunOptions run;
  bool json = false;
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

// Lines for a file or a pipe: those of evaluations, and between them one every few seconds.
class ProgressLog {
 public:
  void show(const RunProgress& p) {
    const bool is_due = timer_.seconds() >= next_;
    if (p.held_out_loss < 0 && (!is_log_ || !is_due)) return;
    next_ = timer_.seconds() + kSecondsBetweenLines;
    write_out(describe(p) + '\n');
  }

 private:
  static constexpr double kSecondsBetweenLines = 5;
  const bool is_log_ = !isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO);
  Timer timer_;
  double next_ = 0;
};

volatile std::sig_atomic_t stop_signal = 0;

// The first signal ends the run after the step it computes, the second at once.
void on_signal(int signal) {
  stop_signal = signal;
  constexpr std::string_view kSaid =
      "\ninvar: stopping with a checkpoint after this step; a second signal stops at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kSaid.data(), kSaid.size());
}

void watch_signals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_RESETHAND;
    sigaction(signal, &action, nullptr);
  }
}

// As the shell counts processes that a signal has ended.
int say_stopped(const TrainFlags& flags, int64_t steps) {
  const std::string where = steps > 0
                                ? fmt::format("after step {}; its checkpoint is written", steps)
                                : "before the first step";
  write_out(fmt::format("{}: stopped by {} {}; the same command resumes from there\n",
                        flags.run.output, stop_signal == SIGINT ? "SIGINT" : "SIGTERM", where));
  return 128 + stop_signal;
}

int run_train(TrainFlags flags) {
  const Recipe recipe = read_recipe(flags.recipe);
  if (flags.run.output.empty()) flags.run.output = "out/" + recipe.name;
  ProgressLine line;
  ProgressLog log;
  flags.run.progress = [&](const RunProgress& p) {
    line.show(describe(p));
    if (flags.json) return;
    if (p.held_out_loss >= 0) line.clear();
    log.show(p);
  };
  flags.run.stop = [] { return stop_signal != 0; };
  watch_signals();
  const RunResult result = run_training(recipe, flags.run);
  line.clear();
  if (result.stopped) return say_stopped(flags, result.steps);
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
  command->add_option("RECIPE", flags->recipe, "A recipe (TOML), such as recipes/story.toml")
      ->required();
  command->add_option(
      "--output", flags->run.output,
      "Directory for checkpoints, metrics, curves and the model (default: out/NAME)");
  command->add_option("--threads", flags->run.threads, "Threads of each rank; 0 means one per core")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--ranks", flags->run.ranks, "Data-parallel ranks in this process")
      ->capture_default_str();
  command
      ->add_option("--instruction-set", flags->run.instruction_set,
                   "auto, scalar, avx2, avx512 or amx; all give the same bits")
      ->capture_default_str();
  command->add_option("--until", flags->run.until, "Stop after this step, with a checkpoint")
      ->check(at_least(0));
  command->add_flag("--json", flags->json, "Print the result as JSON, and no progress");
  command->callback([&action, flags] { action = [flags] { return run_train(*flags); }; });
}

}  // namespace invar::cli
