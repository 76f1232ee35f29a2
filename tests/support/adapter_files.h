// Adapters as PEFT saves them, of random numbers, for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/json.h"
#include "numerics/dtype.h"

namespace invar::testing_adapter {

struct Module {
  std::string name;
  int64_t outputs, inputs;
};

struct Adapter {
  uint32_t seed = 1;
  int rank = 4;
  double alpha = 8;
  float size = 0.3F;  // of its numbers
  bool is_bf16 = false;
  json::Object more = {};  // of the configuration
};

inline float number(uint32_t& state, float size) {
  state = state * 1664525U + 1013904223U;
  return (static_cast<float>(state >> 8) * 0x1p-23F - 1.0F) * size;
}

// Tensors by name, in the order of their bytes.
class Tensors {
 public:
  explicit Tensors(bool is_bf16 = false) : is_bf16_(is_bf16) {}
  void add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    const size_t begin = data_.size();
    for (const float value : values) {
      const bf16_t rounded = f32_to_bf16(value);
      if (is_bf16_)
        data_.append(reinterpret_cast<const char*>(&rounded), sizeof rounded);
      else
        data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    json::Array sizes(shape.begin(), shape.end());
    header_.emplace_back(
        name, json::Object{{"dtype", is_bf16_ ? "BF16" : "F32"},
                           {"shape", std::move(sizes)},
                           {"data_offsets", json::Array{static_cast<int64_t>(begin),
                                                        static_cast<int64_t>(data_.size())}}});
  }
  void write(const std::filesystem::path& path) const {
    const std::string header = json::dump(json::Value(header_));
    const uint64_t size = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof size);
    out << header << data_;
  }

 private:
  bool is_bf16_;
  json::Object header_;
  std::string data_;
};

inline void write_config(const std::filesystem::path& directory, const Adapter& adapter) {
  json::Value config = json::Object{{"peft_type", "LORA"},
                                    {"r", adapter.rank},
                                    {"lora_alpha", adapter.alpha},
                                    {"bias", "none"},
                                    {"task_type", "CAUSAL_LM"}};
  for (const auto& [key, value] : adapter.more) config.set(key, value);
  std::ofstream(directory / "adapter_config.json") << json::dump(config);
}

inline std::string write(const std::filesystem::path& directory, const std::vector<Module>& modules,
                         const Adapter& adapter) {
  std::filesystem::create_directories(directory);
  write_config(directory, adapter);
  Tensors tensors(adapter.is_bf16);
  uint32_t state = adapter.seed;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& value : values) value = number(state, adapter.size);
    tensors.add("base_model.model." + name, {rows, columns}, values);
  };
  for (const Module& module : modules) {
    add(module.name + ".lora_A.weight", adapter.rank, module.inputs);
    add(module.name + ".lora_B.weight", module.outputs, adapter.rank);
  }
  tensors.write(directory / "adapter_model.safetensors");
  return directory.string();
}

// Stacks of experts as PEFT saves them, with numbers that count up: A[e * rank + r][k] and
// B[n][r * experts + e].
struct Stacks {
  std::string module = "model.layers.1.mlp.experts";
  int experts = 3, rank = 2, hidden = 8, width = 6;
  std::string of_gate_up = ".base_layer", of_down = "";  // which wraps which
  json::Object more = {};

  std::string write(const std::filesystem::path& directory) const {
    Tensors tensors;
    const auto add = [&](const std::string& wrapped, int inputs, int outputs, float from) {
      std::vector<float> a(static_cast<size_t>(experts * rank * inputs));
      std::vector<float> b(static_cast<size_t>(outputs * rank * experts));
      std::iota(a.begin(), a.end(), from);
      std::iota(b.begin(), b.end(), from + 0.5F);
      const std::string name = "base_model.model." + module + wrapped;
      tensors.add(name + ".lora_A.weight", {experts * rank, inputs}, a);
      tensors.add(name + ".lora_B.weight", {outputs, rank * experts}, b);
    };
    add(of_gate_up, hidden, 2 * width, 1);
    add(of_down, width, hidden, 1001);
    std::filesystem::create_directories(directory);
    write_config(directory, {.rank = rank, .alpha = 6, .more = more});
    tensors.write(directory / "adapter_model.safetensors");
    return directory.string();
  }
};

}  // namespace invar::testing_adapter
