// Tensors that a caller has changed, over weights that are in use: the others stay.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/model.h"
#include "session/updated_weights.h"
#include "weights/source_bases.h"

namespace invar {

// Elements in the memory of the model's GPU.
struct GpuTensor {
  TensorInfo info;
  const std::byte* data = nullptr;
};
using GpuTensors = std::map<std::string, GpuTensor, std::less<>>;

class ChangedWeights final : public SourceOver {
 public:
  // All outlive it. `device` has the memory of `on_gpu`.
  ChangedWeights(const TensorSource& in_use, const UpdatedTensors& changed,
                 const GpuTensors& on_gpu, Device& device)
      : SourceOver(in_use),
        changed_(in_use, changed),
        named_(changed),
        gpu_(on_gpu),
        device_(device) {}

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    base_.read_row_scales(name, first_row, rows, out);
  }
  bool stays(std::string_view name) const override {
    return !named_.contains(name) && !gpu_.contains(name);
  }
  const std::byte* on_gpu(std::string_view name) const override {
    const auto found = gpu_.find(name);
    return found == gpu_.end() ? nullptr : found->second.data;
  }
  std::string where(std::string_view name) const override {
    return stays(name) ? base_.where(name) : "update_weights: " + std::string(name);
  }

 private:
  const UpdatedWeights changed_;
  const UpdatedTensors& named_;
  const GpuTensors& gpu_;
  Device& device_;
};

// The weights as they are: what was loaded, what a caller has changed, and of that what a GPU's
// memory alone has. For one thread.
class WeightsAsTheyAre final : public SourceOver {
 public:
  // All outlive it.
  WeightsAsTheyAre(const TensorSource& loaded, const UpdatedTensors& updated,
                   const std::set<std::string, std::less<>>& only_on_gpu, Model& model)
      : SourceOver(loaded), updated_(loaded, updated), only_on_gpu_(only_on_gpu), model_(model) {}

  const TensorInfo& info(std::string_view name) const override { return updated_.info(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    base_.read_row_scales(name, first_row, rows, out);
  }
  std::string where(std::string_view name) const override { return updated_.where(name); }

 private:
  const UpdatedWeights updated_;
  const std::set<std::string, std::less<>>& only_on_gpu_;
  Model& model_;
  // That was read back last.
  mutable std::string name_;
  mutable std::vector<std::byte> bytes_;
};

}  // namespace invar
