// A low-rank adapter as PEFT saves it: a directory with adapter_config.json and
// adapter_model.safetensors. It refuses by name what Invar does not compute.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/thread_pool.h"
#include "weights/tensor_source.h"

namespace invar {

constexpr int64_t kMostAdapterRank = 256;

// The product beside one matrix of the model: s B A.
struct AdapterModule {
  std::string name;  // of the module whose weight the matrix is: "model.layers.0.self_attn.q_proj"
  int64_t inputs = 0, outputs = 0, rank = 0;
  double scale = 1;  // s: alpha / rank, or alpha / sqrt(rank)
  std::string a, b;  // its tensors: [rank][inputs], [outputs][rank]
};

class PeftAdapter {
 public:
  // Reads the configuration and what tensors there are. Throws Error.
  explicit PeftAdapter(const std::string& directory);
  // An adapter in memory. `name` stands for it in errors; the modules are sorted by name.
  PeftAdapter(std::string name, std::vector<AdapterModule> modules,
              std::unique_ptr<TensorSource> tensors)
      : directory_(std::move(name)), tensors_(std::move(tensors)), modules_(std::move(modules)) {}

  const std::string& directory() const { return directory_; }
  const std::vector<AdapterModule>& modules() const { return modules_; }  // sorted by name
  int64_t most_rank() const;                                              // of its modules
  const TensorSource& tensors() const { return *tensors_; }
  // Reads all of it. Throws Error naming the tensor where a number is not finite.
  Digest digest(ThreadPool& pool) const;

 private:
  std::string directory_;
  std::unique_ptr<TensorSource> tensors_;
  std::vector<AdapterModule> modules_;
};

// The settings that such a directory has for all its modules.
struct PeftSettings {
  int64_t rank = 8;
  double alpha = 8;
  bool by_root = false;              // rslora: s is alpha / sqrt(rank)
  std::vector<std::string> targets;  // what modules' names end with; empty: the ends of those there
  std::string base = {};             // where the model is that it stands beside, or nothing

  double scale() const;  // s
};

// Writes such a directory. `tensors` has those of the modules under the names that they say. Throws
// Error.
void write_peft_adapter(const std::string& directory, const std::vector<AdapterModule>& modules,
                        const PeftSettings& settings, const TensorSource& tensors,
                        ThreadPool& pool);
// The names of a module's A and B in such a file.
std::string peft_name(const std::string& module, char which);
// Whether a module's name is this one or ends with it behind a point.
bool is_module_named(std::string_view module, std::string_view name);

}  // namespace invar
