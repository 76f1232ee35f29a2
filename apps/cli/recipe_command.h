// The commands that run a recipe, train and rl, share their flags, their progress on a terminal or
// in a log, and their end by a signal.
#pragma once

#include <string>

#include "base/timer.h"
#include "command.h"
#include "train/run_control.h"

namespace invar::cli {

struct RecipeFlags {
  std::string recipe;
  bool json = false;
};
// `example`: a recipe that the help names.
void add_recipe_flags(CLI::App& command, RecipeFlags& flags, RunControl& run,
                      const std::string& example);

// A line that replaces itself on a terminal; lines for a file or a pipe: the important ones, and
// between them one every few seconds.
class RunProgressLines {
 public:
  explicit RunProgressLines(bool json) : json_(json) {}
  void show(const std::string& text, bool is_important);
  void clear() { line_.clear(); }

 private:
  const bool json_;
  ProgressLine line_;
  Timer timer_;
  double next_ = 0;  // when the next line is due, seconds
};

// From now on SIGINT and SIGTERM end the run after the step that it computes, with a checkpoint; a
// second signal ends it at once.
void stop_on_signals(RunControl& run);
// Says so, and returns the exit status, as the shell counts processes that a signal has ended.
// `steps`: done in all; -1: of several runs.
int say_stopped(const RunControl& run, int64_t steps);

}  // namespace invar::cli
