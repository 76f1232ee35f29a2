#include "model/merged_checkpoint.h"

#include <cmath>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "model/adapter_weights.h"
#include "model/families/family_source.h"
#include "model/families/quantised_checkpoint.h"
#include "weights/checkpoint_writer.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

class MergedSource final : public SourceOver {
 public:
  MergedSource(const TensorSource& base, const LoraAdapter& adapter) : SourceOver(base) {
    for (const AdapterModule& module : adapter.modules()) {
      const std::string name = in_tower(base, without_tower(module.name) + ".weight");
      const DType type = base.info(name).dtype;
      if (type != DType::bf16 && type != DType::f32)
        fail("{}: expected BF16 or F32, to which an adapter is added, found {}", base.where(name),
             name_of(type));
      factors_[name] = {static_cast<float>(module.scale), module.rank,
                        values_of(adapter.tensors(), module.a),
                        values_of(adapter.tensors(), module.b)};
    }
  }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const auto found = factors_.find(name);
    if (found == factors_.end()) return base_.read(name, first, count, as, out);
    const Factors& of = found->second;
    const int64_t width = base_.info(name).row_elements();
    std::vector<float> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::f32, values.data());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = (first + i) / width, k = (first + i) % width;
      float sum = 0;
      for (int64_t r = 0; r < of.rank; ++r)
        sum = std::fma(of.b[static_cast<size_t>(n * of.rank + r)],
                       of.a[static_cast<size_t>(r * width + k)], sum);
      values[static_cast<size_t>(i)] += of.scale * sum;
    }
    convert_elements(values.data(), DType::f32, count, as, out);
  }

 private:
  struct Factors {
    float scale;
    int64_t rank;
    std::vector<float> a, b;
  };

  static std::vector<float> values_of(const TensorSource& source, const std::string& name) {
    std::vector<float> values(static_cast<size_t>(source.info(name).elements()));
    source.read(name, 0, std::ssize(values), DType::f32, values.data());
    return values;
  }

  std::map<std::string, Factors, std::less<>> factors_;
};

}  // namespace

void write_merged(const std::string& from, const std::string& adapter_directory,
                  const std::string& to, ThreadPool& pool, const Conversion& how) {
  const UnquantisedCheckpoint model = open_unquantised(from, how);
  const LoraAdapter adapter(adapter_directory);
  if (adapter.has_gguf_names())
    fail("{}: expected an adapter as PEFT saves it, to be merged, found a GGUF file",
         adapter.path());
  expect_fits(adapter, model.config.spec, AdapterUser::cpu);
  adapter.digest(pool);  // all of it is finite
  write_checkpoint(to, MergedSource(*model.stored, adapter), pool, {.progress = how.progress});
  copy_texts(from, to);
  write_file_atomically((std::filesystem::path(to) / "config.json").string(),
                        json::dump(model.directory.config, 2));
}

}  // namespace invar
