// A checkpoint of packed matrices as tensors of bf16.
#include <algorithm>
#include <list>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/error.h"
#include "weights/int8_source.h"
#include "weights/packed_formats.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

constexpr std::string_view kWeight = "weight";
constexpr size_t kKept = 8;  // modules whose tensors are kept

struct PackedEntry {
  std::string module;  // with the point behind it; empty: a tensor as it is
  TensorInfo info;
  bool is_known = true;
};

class PackedSource final : public ListedTensors<PackedEntry> {
 public:
  PackedSource(std::unique_ptr<TensorSource> stored, const PackedFormat& format)
      : stored_(std::move(stored)),
        raw_(dynamic_cast<const RawTensors*>(stored_.get())),
        format_(format) {
    CHECK(raw_, "packed matrices stand in files");
    for (const std::string& name : stored_->names())
      if (const std::string module = module_of(name); !module.empty()) add(module);
    for (const std::string& name : stored_->names())
      if (!belongs(name)) add_plain(name);
    list_names();
  }

  const TensorInfo& info(std::string_view name) const override {
    const PackedEntry& entry = find(name);
    return entry.is_known ? entry.info : stored_->info(name);
  }
  std::string where(std::string_view name) const override {
    const auto entry = entries_.find(name);
    return stored_->where(entry == entries_.end() || entry->second.module.empty()
                              ? std::string(name)
                              : entry->second.module + PackedMatrix::elements_name(format_));
  }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const PackedEntry& entry = find(name);
    if (entry.module.empty()) return stored_->read(name, first, count, as, out);
    const auto matrix = kept(entry.module);
    const int64_t width = matrix->columns();
    std::vector<float> values(static_cast<size_t>(std::min(count, width)));
    char* to = static_cast<char*>(out);
    for (int64_t i = first; i < first + count;) {
      const int64_t n = std::min((i / width + 1) * width, first + count) - i;
      matrix->row(i / width, i % width, n, values.data());
      for (int64_t j = 0; j < n; ++j) values[j] = bf16_to_f32(f32_to_bf16(values[j]));
      convert_elements(values.data(), DType::f32, n, as, to);
      to += n * size_of(as);
      i += n;
    }
  }

  // The matrix behind a tensor; null where that is none of a module's.
  std::shared_ptr<const PackedMatrix> matrix(std::string_view name) const {
    const PackedEntry& entry = find(name);
    return entry.module.empty() ? nullptr : kept(entry.module);
  }
  // The type of blocks that hold a module's elements as they are, or bf16.
  DType block_type(std::string_view name, Quantised how) const {
    const PackedEntry& entry = find(name);
    if (entry.module.empty()) return DType::bf16;
    const int64_t columns = entry.info.shape.at(1);
    if (how == Quantised::as_fp8)
      return PackedMatrix::has_fp8_blocks(format_, columns) ? DType::e4m3 : DType::bf16;
    if (how == Quantised::as_fp8_row)
      return PackedMatrix::has_fp8_rows(format_, columns) ? DType::e4m3_row : DType::bf16;
    return PackedMatrix::block_type(format_, *stored_, *raw_, entry.module, columns);
  }

 private:
  // "model.layers.0.mlp.up_proj." where this is the tensor of a module's elements.
  std::string module_of(std::string_view name) const {
    const std::string_view elements = PackedMatrix::elements_name(format_);
    if (!name.ends_with(elements) || name.size() <= elements.size() ||
        name[name.size() - elements.size() - 1] != '.')
      return {};
    const std::string module(name.substr(0, name.size() - elements.size()));
    if (stored_->has(module + format_.scale)) return module;
    if (elements != kWeight || is_one_of_its_type(name)) fail_missing(module + format_.scale);
    return {};
  }

  // Where a module's elements have a plain tensor's name: whether they have no plain type.
  bool is_one_of_its_type(std::string_view name) const {
    const std::string dtype = raw_->read_raw(name, false).dtype;
    return (format_.kind == PackedFormat::Kind::fp8 && dtype == "F8_E4M3") ||
           (format_.kind == PackedFormat::Kind::integer && dtype == "I8");
  }
  [[noreturn]] void fail_missing(const std::string& name) const {
    fail("{} is missing", stored_->where(name));
  }

  // Whether the tensor is one of a module's.
  bool belongs(std::string_view name) const {
    return std::ranges::any_of(PackedMatrix::names(format_), [&](const std::string& one) {
      if (!name.ends_with('.' + one)) return false;
      if (one == kWeight && one != PackedMatrix::elements_name(format_)) return false;
      const auto entry = entries_.find(std::string(name.substr(0, name.size() - one.size())) +
                                       std::string(kWeight));
      return entry != entries_.end() && !entry->second.module.empty();
    });
  }

  void add(const std::string& module) {
    entries_[module + std::string(kWeight)] = {
        module, {DType::bf16, PackedMatrix::shape_of(format_, *stored_, *raw_, module)}};
  }
  // Matrices beside them are bf16, too; what no weight can be is for the reader to refuse.
  void add_plain(const std::string& name) {
    if (const auto other = entries_.find(name); other != entries_.end())
      fail("{}: expected one form of the matrix, found {}{} too", stored_->where(name),
           other->second.module, PackedMatrix::elements_name(format_));
    PackedEntry entry;
    try {
      entry.info = stored_->info(name);
    } catch (const Error&) {
      entry.is_known = false;
    }
    if (entry.info.shape.size() >= 2 && entry.info.dtype != DType::i8)
      entry.info.dtype = DType::bf16;
    entries_[name] = std::move(entry);
  }

  // The module's tensors, read once for all threads that take rows of it.
  std::shared_ptr<const PackedMatrix> kept(const std::string& module) const {
    const std::lock_guard lock(reading_);
    for (auto one = kept_.begin(); one != kept_.end(); ++one)
      if (one->first == module) {
        kept_.splice(kept_.begin(), kept_, one);
        return one->second;
      }
    kept_.emplace_front(module, std::make_shared<PackedMatrix>(format_, *stored_, *raw_, module));
    if (kept_.size() > kKept) kept_.pop_back();
    return kept_.front().second;
  }

  std::unique_ptr<TensorSource> stored_;
  const RawTensors* raw_;
  const PackedFormat format_;
  mutable std::mutex reading_;
  mutable std::list<std::pair<std::string, std::shared_ptr<const PackedMatrix>>> kept_;
};

// The same with matrices in blocks that hold their elements as they are.
class BlockSource final : public SourceOver {
 public:
  BlockSource(std::unique_ptr<PackedSource> twin, Quantised how)
      : SourceOver(std::move(twin)), twin_(static_cast<const PackedSource&>(base_)) {
    for (const std::string& name : twin_.names()) {
      const DType type = twin_.block_type(name, how);
      if (type == DType::bf16) continue;
      infos_[name] = twin_.info(name);
      infos_[name].dtype = type;
    }
  }

  const TensorInfo& info(std::string_view name) const override {
    const auto entry = infos_.find(name);
    return entry == infos_.end() ? twin_.info(name) : entry->second;
  }
  const TensorSource& as_stored() const override { return twin_; }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const auto entry = infos_.find(name);
    if (entry == infos_.end() || as != entry->second.dtype)
      return twin_.read(name, first, count, as, out);
    const int64_t block = storage_of(as).block, row_blocks = entry->second.shape.at(1) / block;
    CHECK(first % block == 0 && count % block == 0, "whole blocks are read as they are");
    const auto matrix = twin_.matrix(name);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t b = first / block, end = (first + count) / block; b < end;) {
      const int64_t n = std::min((b / row_blocks + 1) * row_blocks, end) - b;
      matrix->blocks(as, b / row_blocks, b % row_blocks, n, to);
      to += bytes_of(as, n * block);
      b += n;
    }
  }

 private:
  const PackedSource& twin_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
};

// Refuses settings that would change the computation or the storage beside the numbers themselves:
// rotations of activations, and matrices of which only some elements stand there.
void check_extras(const json::Value& quantization, const std::string& where) {
  for (const char* key : {"transform_config", "sparsity_config"}) {
    const json::Value* found = quantization.find(key);
    if (!found || found->is_null() || *found == json::Value(json::Object{})) continue;
    const json::Value* format = found->find("format");
    if (!format || *format != json::Value("dense"))
      fail("{}: quantization_config: {}: expected nothing or {{}}, found {}", where, key,
           json::excerpt(*found));
  }
}

}  // namespace

void check_quantization(const json::Value& quantization, const std::string& where) {
  if (!quantization.is_object())
    fail("{}: quantization_config: expected an object, found {}", where, quantization.type_name());
  check_extras(quantization, where);
  if (asks_for_integers(quantization))
    check_w8a8(quantization, where);
  else
    read_packed_format(quantization, where);
}

std::unique_ptr<TensorSource> quantised_tensors(std::unique_ptr<TensorSource> stored,
                                                const json::Value& quantization, Quantised how) {
  if (asks_for_integers(quantization))
    return int8_tensors(std::move(stored), how == Quantised::as_twin);
  auto twin = std::make_unique<PackedSource>(std::move(stored),
                                             read_packed_format(quantization, "config.json"));
  if (how == Quantised::as_twin) return twin;
  return std::make_unique<BlockSource>(std::move(twin), how);
}

}  // namespace invar
