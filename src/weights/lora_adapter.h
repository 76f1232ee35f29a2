// A low-rank adapter: a directory as PEFT saves it (peft_adapter.h), or a GGUF file as llama.cpp
// reads it (gguf_adapter.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "weights/tensor_source.h"

namespace invar {

constexpr int64_t kMostAdapterRank = 256;

// The product beside one matrix of the model: s B A.
struct AdapterModule {
  // The module whose weight the matrix is: "model.layers.0.self_attn.q_proj", in a GGUF file
  // "blk.0.attn_q".
  std::string name;
  int64_t inputs = 0, outputs = 0, rank = 0;
  double scale = 1;     // s: alpha / rank, or alpha / sqrt(rank)
  std::string a, b;     // its tensors: [rank][inputs], [outputs][rank]
  int64_t experts = 0;  // where it is one expert's of a stack: how many that has
};

class LoraAdapter {
 public:
  // Reads what says how it is scaled and which tensors there are. Throws Error.
  explicit LoraAdapter(const std::string& path);
  // An adapter in memory. `name` stands for it in errors; the modules are sorted by name.
  LoraAdapter(std::string name, std::vector<AdapterModule> modules,
              std::unique_ptr<TensorSource> tensors)
      : path_(std::move(name)), tensors_(std::move(tensors)), modules_(std::move(modules)) {}

  const std::string& path() const { return path_; }
  bool has_gguf_names() const { return tensors_->has_gguf_names(); }
  const std::vector<AdapterModule>& modules() const { return modules_; }  // sorted by name
  int64_t most_rank() const;                                              // of its modules
  const TensorSource& tensors() const { return *tensors_; }
  // Reads all of it. Throws Error naming the tensor where a number is not finite.
  Digest digest(ThreadPool& pool) const;

 private:
  std::string path_;
  std::unique_ptr<TensorSource> tensors_;
  std::vector<AdapterModule> modules_;
};

// The tensors of each module, by its name: a matrix A and a matrix B, else it is refused.
struct AdapterFactors {
  std::string a, b;
};
// Throws Error unless there is such a tensor, a matrix of BF16, F16 or F32. `missing`: what its
// name would be.
void expect_factor(const TensorSource& tensors, const std::string& module, char which,
                   const std::string& name, const std::string& missing);

// Throws Error unless A is [rank][inputs] and B [outputs][rank], of BF16, F16 or F32; else the
// module with its rank, not scaled yet. `name_of`: what the name of a tensor of A or B that is not
// there would be.
AdapterModule adapter_module(const TensorSource& tensors, const std::string& module,
                             const AdapterFactors& factors,
                             FunctionRef<std::string(char which)> name_of);

}  // namespace invar
