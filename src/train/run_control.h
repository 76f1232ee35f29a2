// Settings that every run of a recipe takes, whether it trains or learns by reinforcement: where it
// writes, what it computes on, when it ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace invar {

struct RunControl {
  std::string output;  // a directory: checkpoints, metrics, curves, at the end the model or adapter
  int threads = 0;     // of each rank; 0: one per core
  int ranks = 1;       // data-parallel, of the trainer
  // This process's rank among several processes that train together. The first alone writes. null:
  // ranks are threads of this process.
  class Group* group = nullptr;
  std::string device = "cpu";  // or cuda, cuda:N
  std::string instruction_set = "auto";
  bool extends = false;  // with a recipe of more steps than its last checkpoint's
  int64_t until = 0;     // stop after this step, with a checkpoint; 0: at the recipe's end
  // Asked after every step and before the first: true ends the run there, with a checkpoint.
  std::function<bool()> stop;

  // The step after which a run of `steps` ends.
  int64_t end_of(int64_t steps) const { return until > 0 ? std::min(until, steps) : steps; }
  bool stops() const;  // on every rank, when it is on one of them
  bool writes() const;
  std::string checkpoints() const {
    return (std::filesystem::path(output) / "checkpoints").string();
  }
  std::string model() const { return (std::filesystem::path(output) / "model").string(); }
  // A run leaves this at its end: a model, or an adapter as PEFT saves it.
  std::string result(bool is_adapter) const {
    return is_adapter ? (std::filesystem::path(output) / "adapter").string() : model();
  }
};

// Makes the directory of the checkpoints. Throws Error.
void make_run_directory(const RunControl& control);

}  // namespace invar
