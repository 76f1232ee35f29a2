#include "train/metrics_file.h"

#include "base/atomic_file.h"

namespace invar {

MetricsFile::MetricsFile(const std::filesystem::path& directory, int64_t step) {
  const std::filesystem::path path = directory / "metrics.jsonl";
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    json::Value value = json::parse(line, "metrics.jsonl");
    if (value.find("step")->as_integer() > step) continue;
    kept += json::dump(value) + "\n";
    lines_.push_back(std::move(value));
  }
  file.close();
  write_file_atomically(path.string(), kept);
  out_.open(path, std::ios::app);
}

void MetricsFile::write(json::Value line) {
  out_ << json::dump(line) << '\n';
  out_.flush();
  lines_.push_back(std::move(line));
}

}  // namespace invar
