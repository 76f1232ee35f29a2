// Weights are packed by whichever thread comes to them: which, and how many there are, shows
// neither in their bytes nor in what is said of a weight that is not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "model/decoder_weights.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "support/deferred_device.h"

namespace invar {
namespace {

// Others' weights, of which some are not finite; one row takes long to read.
class Spoilt final : public TensorSource {
 public:
  Spoilt(std::unique_ptr<TensorSource> base, std::vector<int64_t> bad_elements, int64_t late_row)
      : base_(std::move(base)), bad_(std::move(bad_elements)), late_row_(late_row) {}
  static constexpr const char* kTensor = "model.embed_tokens.weight";

  const std::vector<std::string>& names() const override { return base_->names(); }
  bool has(std::string_view name) const override { return base_->has(name); }
  const TensorInfo& info(std::string_view name) const override { return base_->info(name); }
  std::string where(std::string_view name) const override { return base_->where(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    base_->read(name, first, count, as, out);
    if (name != kTensor) return;
    const int64_t late = late_row_ * info(name).row_elements();
    if (first <= late && late < first + count)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint32_t nan = 0x7fc00000;
    for (const int64_t bad : bad_)
      if (first <= bad && bad < first + count)
        std::memcpy(static_cast<char*>(out) + (bad - first) * size_of(as),
                    reinterpret_cast<const char*>(&nan) + 4 - size_of(as), size_of(as));
  }

 private:
  std::unique_ptr<TensorSource> base_;
  std::vector<int64_t> bad_;
  int64_t late_row_;
};

std::vector<std::byte> bytes_of(const DecoderWeights& weights) {
  std::vector<std::byte> bytes;
  for (const auto& array : weights.memory())
    bytes.insert(bytes.end(), array.data(), array.data() + array.size());
  return bytes;
}

std::vector<std::byte> loaded(std::vector<int64_t> bad_elements, int64_t late_row, int threads,
                              DType type = DType::bf16, uint64_t seed = 3) {
  const DecoderSpec spec = preset_spec("tiny");
  const Spoilt source(dummy_weights(spec, seed), std::move(bad_elements), late_row);
  const auto device = make_host_device();
  ThreadPool pool(threads);
  const DecoderWeights weights(spec, {.weights = type}, make_shard(spec, 0, 1), source, *device,
                               pool);
  return bytes_of(weights);
}

TEST(Loading, BytesAreThoseOfAnyThreads) {
  const int64_t rows = preset_spec("tiny").vocab;
  for (const DType type : {DType::bf16, DType::f32}) {
    const auto expected = loaded({}, 0, 1, type);
    EXPECT_LT(std::ranges::count(expected, std::byte{0}), std::ssize(expected) * 3 / 4);
    EXPECT_FALSE(loaded({}, 0, 1, type, 4) == expected) << "control: other weights";
    for (const int threads : {2, 3, 5})
      for (const int64_t late : {int64_t{0}, rows / 2, rows - 1})
        EXPECT_EQ(loaded({}, late, threads, type) == expected, true) << threads << " " << late;
  }
}

// Through pinned buffers, which the next reload has again, to a device that copies late.
TEST(Loading, OtherWeightsReachADevice) {
  const DecoderSpec spec = preset_spec("tiny");
  const auto device = make_deferred_device();
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const auto load = [&](uint64_t seed) {
      return DecoderWeights(spec, {}, make_shard(spec, 0, 1), *dummy_weights(spec, seed), *device,
                            pool, WeightLayout::rows);
    };
    DecoderWeights weights = load(3);
    const auto first = bytes_of(weights);
    for (const uint64_t seed : {4, 5, 3}) {
      weights.reload(spec, *dummy_weights(spec, seed), *device, pool);
      EXPECT_EQ(bytes_of(weights) == bytes_of(load(seed)), true) << seed;
      EXPECT_EQ(bytes_of(weights) == first, seed == 3) << "control: other weights, " << seed;
    }
    weights.vacate();
    weights.occupy();
    weights.reload(spec, *dummy_weights(spec, 3), *device, pool);
    EXPECT_EQ(bytes_of(weights) == first, true);
  }
}

TEST(Loading, TheFirstWeightThatIsNotFiniteIsNamed) {
  const DecoderSpec spec = preset_spec("tiny");
  const int64_t width = spec.hidden, rows = spec.vocab;
  const std::vector<int64_t> bad = {(rows - 1) * width + 3, 40 * width + 2, 40 * width + 5,
                                    rows / 2 * width};
  for (const int threads : {1, 2, 4})
    for (const int64_t late : {int64_t{0}, int64_t{40}, rows / 2}) try {
        loaded(bad, late, threads);
        FAIL() << "expected an error";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("found nan in row 40, column 2"),
                  std::string::npos)
            << error.what();
      }
}

}  // namespace
}  // namespace invar
