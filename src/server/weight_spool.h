// Weights that come in the bodies of requests: pieces of safetensors, kept in a directory of their
// own until the engine takes them as the checkpoint that they are together.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

namespace invar::server {

class WeightSpool {
 public:
  struct Options {
    std::string parent;  // where its directory stands; empty: the system's for temporary files
    std::string model;   // the served directory, whose other files stand beside the weights
    size_t most_bytes = size_t{64} << 30;  // of all pieces
  };
  struct Counts {
    size_t tensors = 0, bytes = 0;
  };

  // Throws Error where the directory cannot be made.
  explicit WeightSpool(const Options& options);
  ~WeightSpool();
  WeightSpool(const WeightSpool&) = delete;
  WeightSpool& operator=(const WeightSpool&) = delete;

  // Keeps a piece, from any thread. Returns what there is now. Throws UsageError for what is no
  // safetensors, a tensor that came before, and more bytes than may come.
  Counts add(const std::string& safetensors);
  // The directory as a checkpoint. Throws UsageError where nothing came.
  std::string finish();

 private:
  const Options options_;
  std::filesystem::path directory_;
  std::mutex mutex_;
  std::map<std::string, std::string> files_;  // of tensors
  size_t bytes_ = 0, pieces_ = 0;
};

}  // namespace invar::server
