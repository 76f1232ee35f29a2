#include "numerics/orders.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "numerics/e4m3.h"
#include "numerics/fp8.h"
#include "numerics/hopper8_step.h"
#include "numerics/hopper_step.h"
#include "numerics/int8.h"
#include "numerics/logits_hash.h"
#include "numerics/tensor_core_sum.h"

namespace invar {
namespace {

uint32_t next_random(uint32_t& state) {
  return state = state * 1664525u + 1013904223u;
}

float uniform(uint32_t& state) {
  return static_cast<float>(static_cast<int32_t>(next_random(state))) * 0x1p-31f;
}

TEST(Orders, FlushToZeroIsAfterRounding) {
  ScopedFlushToZero flush;
  volatile float a = 0x1.8p-76f, b = -0x1p-75f, c = 0x1p-126f;
  EXPECT_EQ(__builtin_fmaf(a, b, c), 0.0f);
}

TEST(Orders, RunsAreTheWholeCutAndTreed) {
  ScopedFlushToZero flush;
  uint32_t state = 7;
  std::vector<bf16_t> x(512), w(512);
  for (auto& v : x) v = f32_to_bf16(uniform(state));
  for (auto& v : w) v = f32_to_bf16(uniform(state));
  for (const Order order : {Order::portable, Order::hopper, Order::pair}) {
    float partial[8];
    for (int r = 0; r < 8; ++r) partial[r] = orders::dot(order, &x[r * 64], &w[r * 64], 64);
    const float tree = ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
                       ((partial[4] + partial[5]) + (partial[6] + partial[7]));
    EXPECT_EQ(orders::dot(order, x.data(), w.data(), 512, 8), tree);
    // The cut is part of the definition: another cut is another value.
    EXPECT_NE(orders::dot(order, x.data(), w.data(), 512, 1), tree);
  }
}

TEST(Orders, TailsCountAsZeros) {
  ScopedFlushToZero flush;
  uint32_t state = 9;
  std::vector<bf16_t> x(64, 0), w(64, 0);
  for (int k = 1; k <= 64; ++k) {
    std::fill(x.begin(), x.end(), 0);
    std::fill(w.begin(), w.end(), 0);
    for (int i = 0; i < k; ++i)
      x[i] = f32_to_bf16(uniform(state)), w[i] = f32_to_bf16(uniform(state));
    EXPECT_EQ(orders::dot(Order::portable, x.data(), w.data(), k),
              orders::dot(Order::portable, x.data(), w.data(), 64));
    EXPECT_EQ(orders::dot(Order::hopper, x.data(), w.data(), k),
              orders::dot(Order::hopper, x.data(), w.data(), 64));
    EXPECT_EQ(orders::dot(Order::pair, x.data(), w.data(), k),
              orders::dot(Order::pair, x.data(), w.data(), 64));
  }
}

// The example of the page: the odd product is added first, each rounded once.
TEST(Orders, PairAddsTheOddProductFirst) {
  const ScopedFlushToZero flush;
  const bf16_t one = f32_to_bf16(1), big = f32_to_bf16(0x1p25f), minus = f32_to_bf16(-0x1p25f);
  const bf16_t ones[] = {one, one, one, one}, x[] = {big, one, minus, one};
  EXPECT_EQ(orders::dot(Order::pair, x, ones, 4), 0.0f);
  const bf16_t turned[] = {one, big, one, minus};
  EXPECT_EQ(orders::dot(Order::pair, turned, ones, 4), 1.0f);
}

TEST(Orders, RowParallelRuns) {
  EXPECT_EQ(orders::row_parallel_runs(2048, 16), 8);
  EXPECT_EQ(orders::row_parallel_runs(320, 5), 1);
  EXPECT_EQ(orders::row_parallel_runs(768, 1 << 30), 8);
  EXPECT_EQ(orders::row_parallel_runs(352, 1 << 30), 1);
  EXPECT_EQ(orders::row_parallel_runs(896, 14), 2);
  EXPECT_EQ(orders::row_parallel_runs(4864, 1 << 30), 8);
}

TEST(Orders, Sum64AddsByLane) {
  ScopedFlushToZero flush;
  std::vector<float> x(200);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  EXPECT_EQ(orders::sum64(x), 200 * 201 / 2);
  EXPECT_EQ(orders::sum64_squares(std::vector<float>(130, 2.0f)), 520.0f);
  EXPECT_EQ(orders::sum64({}), 0.0f);
}

TEST(Orders, LogProbabilitiesSumToOne) {
  ScopedFlushToZero flush;
  uint32_t state = 3;
  for (const int v : {1, 63, 64, 320, 511, 512, 513, 32000}) {
    std::vector<float> logits(v);
    for (float& x : logits) x = 10.0f * uniform(state);
    const orders::LogSumExp lse = orders::log_sum_exp(logits);
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(lse.log_probability(x)));
    EXPECT_NEAR(total, 1.0, 1e-5) << v;
  }
}

// The recorded bits of real H200 tensor cores; see tests/data/hopper/README.md.
TEST(Hopper, EveryRecordedCaseIsReproduced) {
  for (const char* name :
       {"hopper_mma_k16.bin", "hopper_mma_k16_special.bin", "hopper_mma_k16_edge.bin"}) {
    std::ifstream file(std::string(INVAR_SOURCE_DIR) + "/tests/data/hopper/" + name,
                       std::ios::binary);
    ASSERT_TRUE(file) << name;
    int32_t count = 0;
    file.read(reinterpret_cast<char*>(&count), sizeof count);
    ASSERT_GT(count, 0);
    bf16_t a[64][16], b[8][16];
    uint32_t c[64][8], d[64][8];
    int64_t different = 0;
    for (int i = 0; i < count; ++i) {
      file.read(reinterpret_cast<char*>(a), sizeof a);
      file.read(reinterpret_cast<char*>(b), sizeof b);
      file.read(reinterpret_cast<char*>(c), sizeof c);
      file.read(reinterpret_cast<char*>(d), sizeof d);
      ASSERT_TRUE(file) << name << ": truncated at case " << i;
      for (int m = 0; m < 64; ++m)
        for (int n = 0; n < 8; ++n) {
          const float got = hopper_step(std::bit_cast<float>(c[m][n]), a[m], b[n]);
          different += std::bit_cast<uint32_t>(got) != d[m][n];
        }
    }
    EXPECT_EQ(different, 0) << name;
  }
}

// A step of zeros: its largest exponent is far below that of a zero of e4m3.
static_assert(tensor_core::scale(0, 128) == 0 && tensor_core::scale(-3, 2) == -12 &&
              tensor_core::scale(-7, -1) == -3 && tensor_core::scale(1, -63) == 0);

// The same of their steps of e4m3; the control: those of another precision are others.
TEST(Hopper, EveryRecordedCaseOfE4m3IsReproduced) {
  std::ifstream file(std::string(INVAR_SOURCE_DIR) + "/tests/data/hopper/hopper_wgmma_e4m3_k32.bin",
                     std::ios::binary);
  ASSERT_TRUE(file);
  int32_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  ASSERT_EQ(count, 60);
  uint8_t a[64][32], b[8][32];
  uint32_t c[64][8], d[64][8];
  int64_t different = 0, more_precise = 0;
  for (int i = 0; i < count; ++i) {
    file.read(reinterpret_cast<char*>(a), sizeof a);
    file.read(reinterpret_cast<char*>(b), sizeof b);
    file.read(reinterpret_cast<char*>(c), sizeof c);
    file.read(reinterpret_cast<char*>(d), sizeof d);
    ASSERT_TRUE(file) << "truncated at case " << i;
    for (int m = 0; m < 64; ++m)
      for (int n = 0; n < 8; ++n) {
        const float got = hopper8_step(std::bit_cast<float>(c[m][n]), a[m], b[n]);
        different += std::bit_cast<uint32_t>(got) != d[m][n];
        more_precise += (d[m][n] & 0x3ff) != 0 && (d[m][n] & 0x7f800000) != 0x7f800000;
      }
  }
  EXPECT_EQ(different, 0);
  EXPECT_EQ(more_precise, 0);  // 13 bits behind the leading one, and no more
}

// The example of numerics 2.2.
TEST(Orders, ProductsOfE4m3) {
  ScopedFlushToZero flush;
  std::vector<uint8_t> x(256, 0), w(256, 0);
  const auto number = [](float value) { return e4m3::from_f32(value); };
  const std::vector<RunScale> scales = {{2.0f, 0}, {0.5f, 0}};
  const std::vector<float> w_scales = {0.25f, 4.0f};
  x[0] = number(448), w[0] = number(448);     // 200704 = 49 * 2^12: exact
  x[1] = number(1), w[1] = number(1);         // below 2^(16 - 13): truncated to 0
  x[200] = number(3), w[200] = number(-0.5);  // -1.5
  EXPECT_EQ(orders::fp8_dot(x.data(), scales.data(), w.data(), w_scales.data(), 256, 1),
            200704.0f * 0.5f - 1.5f * 2.0f);
}

// The example of numerics 2.5; in runs of two steps -1.5 is all of one, and stays.
TEST(Orders, ProductsOfE4m3ByRows) {
  ScopedFlushToZero flush;
  std::vector<uint8_t> x(256, 0), w(256, 0);
  const auto number = [](float value) { return e4m3::from_f32(value); };
  const std::vector<RunScale> scales(4, {2.0f, 0});
  x[0] = number(448), w[0] = number(448);
  x[1] = number(1), w[1] = number(1);
  x[200] = number(3), w[200] = number(-0.5);
  EXPECT_EQ(orders::fp8_row_dot(x.data(), scales.data(), w.data(), 0.25f, 256, 1), 100352.0f);
  EXPECT_EQ(orders::fp8_row_dot(x.data(), scales.data(), w.data(), 0.25f, 256, 4),
            100352.0f - 0.75f);
}

// What products of 8 bits cost: the root mean square of their difference from the exact dots, by
// that of the dots. Of e4m3 all that is seen is the rounding to e4m3.
TEST(Orders, ErrorsOfProductsOf8Bits) {
  ScopedFlushToZero flush;
  constexpr int64_t kColumns = 4096, kGroups = kColumns / orders::kFp8Group;
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  double square = 0, fp8 = 0, rounded = 0, one_chain = 0, by_rows = 0, int8 = 0;
  for (int dot = 0; dot < 800; ++dot) {
    std::vector<bf16_t> x(kColumns), w(kColumns);
    for (bf16_t& v : x) v = f32_to_bf16(normal(random));
    for (bf16_t& v : w) v = f32_to_bf16(0.02f * normal(random));
    std::vector<uint8_t> qx(kColumns), qw(kColumns);
    std::vector<RunScale> sx(kGroups), sw(kGroups);
    orders::quantise_fp8_run(x.data(), 0, kColumns, 0, qx.data(), sx.data());
    orders::quantise_fp8_run(w.data(), 0, kColumns, 0, qw.data(), sw.data());
    std::vector<float> scales(kGroups);
    for (int64_t g = 0; g < kGroups; ++g) scales[g] = sw[g].scale;
    std::vector<int8_t> ix(kColumns), iw(kColumns);
    const RunScale x_scale = orders::quantise_run(x.data(), kColumns, ix.data());
    const RunScale w_scale = orders::quantise_run(w.data(), kColumns, iw.data());
    std::vector<uint8_t> rx(kColumns), rw(kColumns);
    const RunScale x_row = orders::quantise_fp8_row(x.data(), kColumns, rx.data());
    const RunScale w_row = orders::quantise_fp8_row(w.data(), kColumns, rw.data());
    double exact = 0, of_rounded = 0;
    float chain = 0;  // in units of the first group's scales, which are near all others
    for (int64_t i = 0; i < kColumns; ++i) {
      const int64_t g = i / orders::kFp8Group;
      exact += double{bf16_to_f32(x[i])} * bf16_to_f32(w[i]);
      of_rounded += double{bf16_to_f32(e4m3::to_bf16(qx[i]))} * sx[g].scale *
                    bf16_to_f32(e4m3::to_bf16(qw[i])) * scales[g];
      if (i % 32 == 0) chain = hopper8_step(chain, &qx[i], &qw[i]);
    }
    double chain_exact = 0;
    for (int64_t i = 0; i < kColumns; ++i)
      chain_exact += double{bf16_to_f32(e4m3::to_bf16(qx[i]))} * bf16_to_f32(e4m3::to_bf16(qw[i]));
    const auto add = [](double& sum, double difference) { sum += difference * difference; };
    add(square, exact);
    add(fp8, orders::fp8_dot(qx.data(), sx.data(), qw.data(), scales.data(), kColumns, 1) - exact);
    add(rounded, of_rounded - exact);
    add(by_rows,
        orders::fp8_row_dot(rx.data(), &x_row, rw.data(), w_row.scale, kColumns, 1) - exact);
    add(one_chain, (chain - chain_exact) * sx[0].scale * scales[0]);
    add(int8, orders::int8_dot(ix.data(), &x_scale, iw.data(), w_scale.scale, kColumns, 1) - exact);
  }
  const auto share = [&](double sum) { return std::sqrt(sum / square); };
  printf(
      "4096 normal numbers, by the dots: e4m3 %.4f, its rounding alone %.4f, 13 bits in one chain "
      "%.4f, by rows %.4f, int8 %.4f\n",
      share(fp8), share(rounded), share(one_chain), share(by_rows), share(int8));
  EXPECT_LT(share(fp8), 1.1 * share(rounded));
  EXPECT_LT(share(one_chain), share(rounded));
  EXPECT_LT(share(by_rows), 1.1 * share(fp8));
  EXPECT_LT(share(int8), share(fp8));
}

TEST(LogitsHash, MinusZeroIsZeroAndOrderCounts) {
  PositionHasher hash;
  std::vector<float> a(5000, 1.0f), b = a;
  a[17] = 0.0f;
  b[17] = -0.0f;
  EXPECT_EQ(hash(a), hash(b));
  b[4999] = 2.0f;
  EXPECT_NE(hash(a), hash(b));
  LogitsHash ab, ba;
  ab.add(hash(a)), ab.add(hash(b));
  ba.add(hash(b)), ba.add(hash(a));
  EXPECT_NE(ab.value(), ba.value());
}

}  // namespace
}  // namespace invar
