// metrics.jsonl: what a run measured, one line a step.
#pragma once

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/json.h"

namespace invar {

class MetricsFile {
 public:
  // Keeps the lines of a file that is there up to `step`: those behind it were written by a run
  // that did not save them.
  MetricsFile(const std::filesystem::path& directory, int64_t step);

  // An object with a "step". It is on its way to the disk when this returns. Throws Error when it
  // cannot be written.
  void write(json::Value line);
  const std::vector<json::Value>& lines() const { return lines_; }

 private:
  std::string path_;
  std::vector<json::Value> lines_;
  std::ofstream out_;
};

}  // namespace invar
