// The measurements of a run of reinforcement learning: metrics.jsonl and the curves over it.
#pragma once

#include "plot/plot.h"
#include "train/metrics_file.h"
#include "train/rl/rl_run.h"

namespace invar::rl {

class RlMetrics {
 public:
  // Keeps what is there up to `step`.
  RlMetrics(const std::filesystem::path& directory, int64_t step);

  bool is_empty() const { return file_.lines().empty(); }
  // Step 0: nothing but the evaluation.
  void write_first(double evaluation);
  void write(const RlProgress& progress);
  void draw(const std::string& title) const;

  // -1 where nothing was evaluated.
  double first_evaluation() const;
  double last_evaluation() const;
  // A number of every line that has it, over steps.
  Curve curve(const std::string& name, const char* key) const;

 private:
  std::filesystem::path directory_;
  MetricsFile file_;
};

}  // namespace invar::rl
