#include "weights/mxfp4_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kInBlock = 32, kBlockBytes = 16;
class Mxfp4Source final : public SourceOver {
 public:
  explicit Mxfp4Source(std::unique_ptr<TensorSource> stored) : SourceOver(std::move(stored)) {
    std::map<std::string, bool, std::less<>> is_scales;
    for (const std::string& name : base_.names())
      if (name.ends_with(kBlocks) && base_.has(scales_of(name))) {
        add(name);
        is_scales[scales_of(name)] = true;
      }
    for (const std::string& name : base_.names())
      if (!is_scales.contains(name)) names_.push_back(name);
  }

  const std::vector<std::string>& names() const override { return names_; }
  const TensorInfo& info(std::string_view name) const override {
    const auto entry = entries_.find(name);
    return entry == entries_.end() ? base_.info(name) : entry->second;
  }
  const TensorSource& as_stored() const override { return base_.as_stored(); }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (!entries_.contains(name)) return base_.read(name, first, count, as, out);
    if (count == 0) return;
    const int64_t begin = first / kInBlock, blocks = (first + count - 1) / kInBlock + 1 - begin;
    const std::vector<uint8_t> all = read_blocks(name, begin, blocks);
    if (as == DType::mxfp4) {
      CHECK(first % kInBlock == 0 && count % kInBlock == 0, "whole blocks are read as they are");
      std::memcpy(out, all.data(), all.size());
      return;
    }
    std::vector<float> values(static_cast<size_t>(blocks * kInBlock));
    convert_elements(all.data(), DType::mxfp4, blocks * kInBlock, DType::f32, values.data());
    convert_elements(values.data() + first % kInBlock, DType::f32, count, as, out);
  }

 private:
  // As the storage type has them: the scale and a byte of padding, then of 16 bytes the lower
  // halves as the first elements, where a file has the two of a byte side by side.
  std::vector<uint8_t> read_blocks(std::string_view name, int64_t begin, int64_t blocks) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(blocks * kBlockBytes));
    std::vector<uint8_t> scales(static_cast<size_t>(blocks));
    base_.read(name, begin * kBlockBytes, std::ssize(bytes), DType::i8, bytes.data());
    base_.read(scales_of(name), begin, blocks, DType::i8, scales.data());
    std::vector<uint8_t> all(static_cast<size_t>(bytes_of(DType::mxfp4, blocks * kInBlock)));
    uint8_t* to = all.data();
    const uint8_t* from = bytes.data();
    for (int64_t b = 0; b < blocks; ++b, from += kBlockBytes, to += 16) {
      *to++ = scales[static_cast<size_t>(b)];
      *to++ = 0;
      for (int i = 0; i < 16; ++i) {
        const auto code = [&](int element) { return from[element / 2] >> element % 2 * 4 & 15; };
        to[i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
      }
    }
    return all;
  }

  static std::string scales_of(std::string_view name) {
    return std::string(name.substr(0, name.size() - kBlocks.size())) + std::string(kScales);
  }

  void add(const std::string& name) {
    TensorInfo info = base_.info(name);
    const TensorInfo& scales = base_.info(scales_of(name));
    std::vector<int64_t> of_blocks = info.shape;
    if (!of_blocks.empty()) of_blocks.pop_back();
    const bool are_bytes = info.dtype == DType::i8 && scales.dtype == DType::i8;
    if (!are_bytes || of_blocks.empty() || info.shape.back() != kBlockBytes ||
        scales.shape != of_blocks)
      fail("{}: expected blocks of 16 bytes, a scale for each, found [{}] beside scales [{}]",
           base_.where(name), fmt::join(info.shape, ", "), fmt::join(scales.shape, ", "));
    of_blocks.back() *= kInBlock;
    entries_[name] = {DType::mxfp4, std::move(of_blocks)};
  }

  std::map<std::string, TensorInfo, std::less<>> entries_;
  std::vector<std::string> names_;
};

}  // namespace

bool is_mxfp4(const json::Value& quantization, const std::string& where) {
  const json::Value* method =
      quantization.is_object() ? quantization.find("quant_method") : nullptr;
  if (!method || *method != json::Value("mxfp4")) return false;
  // Modules that are not converted have no blocks; the last key says what a library makes of the
  // weights in memory.
  constexpr std::string_view kKnown[] = {"quant_method", "modules_to_not_convert", "dequantize"};
  for (const auto& [key, value] : quantization.as_object())
    if (std::ranges::find(kKnown, key) == std::end(kKnown))
      fail(
          "{}: quantization_config: the key {} may change the arithmetic and is not known for "
          "mxfp4",
          where, json::quoted(key));
  return true;
}

std::unique_ptr<TensorSource> mxfp4_tensors(std::unique_ptr<TensorSource> stored) {
  return std::make_unique<Mxfp4Source>(std::move(stored));
}

}  // namespace invar
