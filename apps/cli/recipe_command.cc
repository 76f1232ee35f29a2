#include "recipe_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "number_flags.h"

namespace invar::cli {

namespace {

constexpr double kSecondsBetweenLines = 5;

volatile std::sig_atomic_t stop_signal = 0;

void on_signal(int signal) {
  stop_signal = signal;
  constexpr std::string_view kSaid =
      "\ninvar: stopping with a checkpoint after this step; a second signal stops at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kSaid.data(), kSaid.size());
}

}  // namespace

void add_recipe_flags(CLI::App& command, RecipeFlags& flags, RunControl& run,
                      const std::string& example) {
  command.add_option("RECIPE", flags.recipe, "A recipe (TOML), such as " + example)->required();
  command.add_option(
      "--output", run.output,
      "Directory for checkpoints, metrics, curves and the model (default: out/NAME)");
  command.add_option("--threads", run.threads, "Threads of each rank; 0 means one per core")
      ->check(at_least(0))
      ->capture_default_str();
  command.add_option("--ranks", run.ranks, "Data-parallel ranks of the trainer, in this process")
      ->capture_default_str();
  command
      .add_option("--device", run.device,
                  "cpu, or the GPU cuda or cuda:N, with the same bits as a CPU")
      ->capture_default_str();
  command
      .add_option("--instruction-set", run.instruction_set,
                  "auto, scalar, avx2, avx512 or amx; all give the same bits")
      ->capture_default_str();
  command.add_flag("--extend", run.extends,
                   "Go on from a checkpoint of a run of fewer steps: from there on the learning "
                   "rate falls along the recipe's steps");
  command.add_option("--until", run.until, "Stop after this step, with a checkpoint")
      ->check(at_least(0));
  command.add_flag("--json", flags.json, "Print the result as JSON, and no progress");
}

void RunProgressLines::show(const std::string& text, bool is_important) {
  line_.show(text);
  if (json_) return;
  const bool is_log = !isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO);
  if (!is_important && (!is_log || timer_.seconds() < next_)) return;
  next_ = timer_.seconds() + kSecondsBetweenLines;
  line_.clear();
  write_out(text + '\n');
}

void stop_on_signals(RunControl& run) {
  run.stop = [] { return stop_signal != 0; };
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_RESETHAND;
    sigaction(signal, &action, nullptr);
  }
}

int say_stopped(const RunControl& run, int64_t steps) {
  std::string where = "in the middle of a run; its checkpoint is written";
  if (steps >= 0)
    where = steps > 0 ? fmt::format("after step {}; its checkpoint is written", steps)
                      : "before the first step";
  write_out(fmt::format("{}: stopped by {} {}; the same command resumes from there\n", run.output,
                        stop_signal == SIGINT ? "SIGINT" : "SIGTERM", where));
  return 128 + stop_signal;
}

}  // namespace invar::cli
