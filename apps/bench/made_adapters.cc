#include "made_adapters.h"

#include <unistd.h>

#include <atomic>
#include <map>

#include "model/adapter_weights.h"
#include "session/adapter.h"
#include "weights/peft_adapter.h"

namespace invar::cli {

namespace {

// Small numbers, the same ones for a seed.
class MadeTensors final : public TensorSource {
 public:
  MadeTensors(const std::vector<AdapterModule>& modules, int64_t rank, uint32_t seed, float size)
      : seed_(seed), size_(size) {
    for (const AdapterModule& module : modules) {
      infos_[peft_name(module.name, 'A')] = {DType::bf16, {rank, module.inputs}};
      infos_[peft_name(module.name, 'B')] = {DType::bf16, {module.outputs, rank}};
    }
    for (const auto& [name, info] : infos_) names_.push_back(name);
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(name); }
  const TensorInfo& info(std::string_view name) const override { return infos_.find(name)->second; }
  std::string where(std::string_view name) const override { return std::string(name); }
  void read(std::string_view, int64_t first, int64_t count, DType as, void* out) const override {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<uint32_t>(first) + static_cast<uint32_t>(i);
      const uint32_t bits = (at + seed_) * 2654435761U;
      values[i] = (static_cast<float>(bits >> 8) * 0x1p-23F - 1.0F) * size_;
    }
    convert_elements(values.data(), DType::f32, count, as, out);
  }

 private:
  uint32_t seed_;
  float size_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
  std::vector<std::string> names_;
};

}  // namespace

MadeAdapters::MadeAdapters(const DecoderSpec& spec, AdapterUser user, int rank, int count,
                           float size) {
  static std::atomic<int> made = 0;
  directory_ = std::filesystem::temp_directory_path() /
               fmt::format("invar-adapters-{}-{}", ::getpid(), ++made);
  ThreadPool pool(1);
  const std::vector<AdapterModule> modules = adaptable_modules(spec, user);
  for (int i = 0; i < count; ++i) {
    const std::string path = (directory_ / std::to_string(i)).string();
    write_peft_adapter(path, modules,
                       {.rank = rank, .alpha = static_cast<double>(rank), .targets = {}},
                       MadeTensors(modules, rank, 97 * static_cast<uint32_t>(i), size), pool);
    adapters_.push_back(open_adapter(path, path, spec, user));
  }
}

MadeAdapters::~MadeAdapters() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

bool MadeAdapters::exist_for(const DecoderSpec& spec, AdapterUser user) {
  return !adaptable_modules(spec, user).empty();
}

}  // namespace invar::cli
