#include "kernel_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string_view>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/backward.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/matmul.h"
#include "kernels/select.h"

namespace invar {

namespace cpu {
void attend_amx_emulated(const TileSource& tiles);
void product_amx_emulated(const PanelProduct& p);
void int8_product_amx_emulated(const PanelProduct& p);
extern const RowFunctions kAmxRowsEmulated;
}  // namespace cpu

namespace {

constexpr std::string_view kEmulated = "amx_emulated";  // on top of AVX-512

enum class Kind { ordinary, tiny, any_finite, special };

Kind random_kind(Random& random) {
  const uint32_t x = random.below(16);
  return x < 7 ? Kind::ordinary : x < 11 ? Kind::tiny : x < 15 ? Kind::any_finite : Kind::special;
}

// A value with the exponent of 2^exponent.
float with_exponent(Random& random, int exponent) {
  return std::bit_cast<float>((random.next() & 0x807fffff) | static_cast<uint32_t>(exponent + 127)
                                                                 << 23);
}

float value_of_kind(Random& random, Kind kind) {
  switch (kind) {
    case Kind::ordinary:
      return random.uniform();
    case Kind::tiny:  // products from 2^-138 to 2^-118
      return with_exponent(random, -64 + static_cast<int>(random.below(6)));
    case Kind::any_finite: {
      const uint32_t bits = random.next();
      const bool finite = (bits & 0x7f800000) != 0x7f800000;
      return std::bit_cast<float>(random.below(8) ? (finite ? bits : bits & 0x80000000)
                                                  : bits & 0x807fffff);  // subnormal
    }
    case Kind::special: {
      const uint32_t x = random.below(64);
      if (x > 1) return random.uniform();
      return std::bit_cast<float>(x ? 0x7fc00000 : (random.next() & 0x80000000) | 0x7f800000);
    }
  }
  return 0;
}

bool is_nan(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7fffffff) > 0x7f800000;
}
bool is_nan(bf16_t x) {
  return (x & 0x7fff) > 0x7f80;
}

template <typename T>
bool is_stale(T x) {
  T stale;
  std::memset(&stale, Guarded<T>::kStale, sizeof stale);
  return std::memcmp(&x, &stale, sizeof stale) == 0;
}

template <typename T>
bool is_same(T a, T b) {
  if (is_stale(a) || is_stale(b)) return is_stale(a) && is_stale(b);
  return (is_nan(a) && is_nan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

std::string describe(float x) {
  return fmt::format("{:a} ({:08x})", x, std::bit_cast<uint32_t>(x));
}
std::string describe(bf16_t x) {
  return fmt::format("{:a} (bf16 {:04x})", bf16_to_f32(x), x);
}

template <typename T>
::testing::AssertionResult compare(std::span<const T> expected, std::span<const T> found) {
  size_t different = 0, first = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    if (!is_same(expected[i], found[i]) && different++ == 0) first = i;
  if (!different) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << different << " of " << expected.size() << " differ, first at " << first << ": expected "
         << describe(expected[first]) << ", found " << describe(found[first]);
}

// Whether INVAR_REQUIRE, names with commas between them, holds the name.
bool is_required(std::string_view set) {
  const char* value = std::getenv("INVAR_REQUIRE");
  for (std::string_view list = value ? value : ""; !list.empty();) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == set) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

void fill_row(Random& random, std::span<float> row) {
  const Kind kind = random_kind(random);
  for (float& x : row) x = value_of_kind(random, kind);
}

void fill_row(Random& random, std::span<bf16_t> row) {
  const Kind kind = random_kind(random);
  // The upper half as it is: a subnormal bf16 must stay one.
  for (bf16_t& x : row)
    x = static_cast<bf16_t>(std::bit_cast<uint32_t>(value_of_kind(random, kind)) >> 16);
}

::testing::AssertionResult same_bits(std::span<const float> expected,
                                     std::span<const float> found) {
  return compare(expected, found);
}

::testing::AssertionResult same_bits(std::span<const bf16_t> expected,
                                     std::span<const bf16_t> found) {
  return compare(expected, found);
}

void run_in_parts(int count, const std::function<void(const Execution&)>& work) {
  const ScopedFlushToZero flush;
  for (int i = count - 1; i >= 0; --i) work(Execution{.share = {i, count}});
}

void KernelTest::SetUp() {
  scalar_ = select_kernels(Order::portable, "scalar");
  scalar_training_ = select_training_kernels(Order::portable, "scalar");
  const std::string& set = GetParam();
  const bool emulated = set == kEmulated;
  // Beside the tiles there are instructions that every processor with them has.
  if (emulated ? cpu::has_avx512_bf16() : is_supported(set)) {
    kernels_ = select_kernels(Order::portable, emulated ? "avx512" : set);
    training_kernels_ = select_training_kernels(Order::portable, emulated ? "avx512" : set);
    if (emulated) {
      cpu::override_elementwise<cpu::kAmxRowsEmulated>(kernels_);
      static constexpr cpu::AttendFunctions kEmulatedAttend = {
          cpu::attend_amx_emulated, cpu::kAmxTileQueries, cpu::attend_f32_avx512};
      cpu::override_attention<kEmulatedAttend>(kernels_);
      cpu::override_matmul<cpu::product_amx_emulated>(kernels_);
      cpu::override_qkv_product<cpu::matmul<cpu::product_amx_emulated>,
                                cpu::matmul<cpu::int8_product_amx_emulated>,
                                cpu::matmul<cpu::fp8_product_avx512>, cpu::kAmxRowsEmulated>(
          kernels_);
      cpu::override_attention_backward<cpu::product_amx_emulated, cpu::kAvx512Backward>(
          training_kernels_);
      cpu::override_training_matmul<cpu::product_amx_emulated>(training_kernels_);
    }
  } else if (is_required(set)) {
    FAIL() << "the instruction set " << set << " is required and this machine has none";
  } else {
    GTEST_SKIP() << "NOT RUN: this machine has no " << set;
  }
}

std::vector<std::string> tested_sets() {
  return {"avx2", "avx512", "amx", std::string(kEmulated)};
}

std::string set_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace invar
