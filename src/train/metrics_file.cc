#include "train/metrics_file.h"

#include <cerrno>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"

namespace invar {

MetricsFile::MetricsFile(const std::filesystem::path& directory, int64_t step)
    : path_((directory / "metrics.jsonl").string()) {
  std::ifstream file(path_);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    json::Value value = json::parse(line, "metrics.jsonl");
    if (value.find("step")->as_integer() > step) continue;
    kept += json::dump(value) + "\n";
    lines_.push_back(std::move(value));
  }
  file.close();
  write_file_atomically(path_, kept);
  out_.open(path_, std::ios::app);
}

void MetricsFile::write(json::Value line) {
  out_ << json::dump(line) << '\n';
  out_.flush();
  if (!out_) fail("{}: cannot be written: {}", path_, std::strerror(errno));
  lines_.push_back(std::move(line));
}

}  // namespace invar
