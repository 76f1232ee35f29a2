// Made Medusa heads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "target_tables.h"
#include "weights/checkpoint_writer.h"

namespace invar {

// Tensors of bf16 in memory.
class Tensors final : public TensorSource {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, std::vector<bf16_t> values) {
    infos_[name] = {.dtype = DType::bf16, .shape = std::move(shape)};
    values_[name] = std::move(values);
    names_.clear();
    for (const auto& [key, info] : infos_) names_.push_back(key);
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override {
    return infos_.at(std::string(name));
  }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    convert_elements(&values_.at(std::string(name))[static_cast<size_t>(first)], DType::bf16, count,
                     as, out);
  }
  std::string where(std::string_view name) const override { return std::string(name); }

 private:
  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, std::vector<bf16_t>> values_;
  std::vector<std::string> names_;
};

// Heads whose residual blocks add nothing, before the target's own `head`: each says again what the
// target said.
inline Tensors made_heads(const DecoderSpec& spec, const std::vector<bf16_t>& head, int heads) {
  Tensors tensors;
  for (int i = 0; i < heads; ++i) {
    const std::string n = std::to_string(i);
    tensors.add("blocks." + n + ".layers.0.weight", {spec.hidden, spec.hidden},
                std::vector<bf16_t>(static_cast<size_t>(spec.hidden * spec.hidden)));
    tensors.add("lm_heads." + n + ".weight", {spec.vocab, spec.hidden}, head);
  }
  return tensors;
}

}  // namespace invar
