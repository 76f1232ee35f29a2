// The orders `hopper` and `pair` on the CPU: every instruction set against the scalar definition,
// on data of every kind that a fast step does and does not cover; `hopper` against the recorded
// bits of an H200, too.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/hopper_panel.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pair.h"
#include "kernels/reference/reference.h"
#include "kernels/select.h"
#include "numerics/hopper_step.h"

namespace invar {
namespace {

uint32_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

// What the numbers of a test look like.
enum class Data { normal, wide, tiny, huge, any_finite, any_bits, mostly_zero, largest_mantissas };
constexpr Data kAllData[] = {
    Data::normal,     Data::wide,     Data::tiny,        Data::huge,
    Data::any_finite, Data::any_bits, Data::mostly_zero, Data::largest_mantissas};

bf16_t draw(Data kind, uint64_t& state) {
  const uint32_t r = next_random(state);
  const auto with_exponent = [&](int exponent) {
    return static_cast<bf16_t>((r & 0x807f) | static_cast<uint32_t>(exponent + 127) << 7);
  };
  const int spread = static_cast<int>(next_random(state) >> 8);
  switch (kind) {
    case Data::normal:
      return with_exponent(-(spread % 4));
    case Data::wide:
      return with_exponent(spread % 25 - 12);
    case Data::tiny:
      return with_exponent(-60 - spread % 67);
    case Data::huge:
      return with_exponent(20 + spread % 50);
    case Data::any_finite: {
      const bf16_t x = static_cast<bf16_t>(r);
      return (x & 0x7f80) == 0x7f80 ? static_cast<bf16_t>(x & 0x80ff) : x;
    }
    case Data::any_bits:
      return spread % 100 ? with_exponent(-(spread % 4)) : static_cast<bf16_t>(r);
    case Data::mostly_zero:
      return spread % 20 ? static_cast<bf16_t>(r & 0x8000) : with_exponent(-(spread % 30));
    case Data::largest_mantissas:
      return 0x3fff;
  }
  return 0;
}

std::vector<bf16_t> draw_all(Data kind, int64_t count, uint64_t& state) {
  std::vector<bf16_t> all(count);
  for (bf16_t& x : all) x = draw(kind, state);
  return all;
}

bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
bool same(bf16_t a, bf16_t b) {
  return a == b || ((a & 0x7fff) > 0x7f80 && (b & 0x7fff) > 0x7f80);
}

template <typename T>
int64_t differences(const std::vector<T>& a, const std::vector<T>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += !same(a[i], b[i]);
  return count;
}

std::vector<bf16_t> pack(const std::vector<bf16_t>& w, int64_t n, int64_t k) {
  std::vector<bf16_t> packed(round_up(n, 16) * round_up(k, 32));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) packed[packed_index_bf16(i, j, k)] = w[i * k + j];
  return packed;
}

// Activation rows with their stride; the columns past the pad hold garbage.
std::vector<bf16_t> activation(const std::vector<bf16_t>& x, int64_t rows, int64_t k) {
  const int64_t stride = activation_stride(k);
  std::vector<bf16_t> out(rows * stride, 0x7fc1);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t j = 0; j < round_up(k, 32); ++j) out[t * stride + j] = j < k ? x[t * k + j] : 0;
  return out;
}

class HopperKernels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!is_supported(GetParam())) GTEST_SKIP() << "this machine has no " << GetParam();
  }
  static hopper::PanelFunction* panel() {
    return std::string_view(GetParam()) == "avx2" ? hopper::panel_avx2 : hopper::panel_avx512;
  }

  ScopedFlushToZero flush_;
};

// A table of kernels and whether this machine has it.
struct Tried {
  const char* name;
  const char* set;
  Order order;
  // In the place of the set's own, or null.
  cpu::RunProduct product = nullptr;
  bool (*is_there)() = [] { return true; };
};

class OrderKernels : public testing::TestWithParam<Tried> {
 protected:
  void SetUp() override {
    const Tried& tried = GetParam();
    if (!is_supported(tried.set) || !tried.is_there())
      GTEST_SKIP() << "this machine has no " << tried.name;
    fast_ = select_kernels(tried.order, tried.set);
    scalar_ = reference::table(tried.order);
  }
  void matmul(const MatmulParams& p, const Execution& on) const {
    GetParam().product ? cpu::matmul(GetParam().product, p, false, on) : fast_.matmul(p, on);
  }

  ScopedFlushToZero flush_;
  Kernels fast_, scalar_;
};

TEST_P(HopperKernels, RecordedVectors) {
  using Input = hopper::StepInput;
  int64_t outputs = 0, different = 0;
  for (const char* name :
       {"hopper_mma_k16.bin", "hopper_mma_k16_special.bin", "hopper_mma_k16_edge.bin"}) {
    std::ifstream file(std::string(INVAR_SOURCE_DIR) + "/tests/data/hopper/" + name,
                       std::ios::binary);
    int32_t count = 0;
    file.read(reinterpret_cast<char*>(&count), sizeof count);
    bf16_t a[64][16], b[8][16];
    uint32_t c[64][8], d[64][8];
    for (int i = 0; i < count; ++i) {
      file.read(reinterpret_cast<char*>(a), sizeof a);
      file.read(reinterpret_cast<char*>(b), sizeof b);
      file.read(reinterpret_cast<char*>(c), sizeof c);
      file.read(reinterpret_cast<char*>(d), sizeof d);
      ASSERT_TRUE(file) << name;
      bf16_t packed[256] = {};
      for (int n = 0; n < 8; ++n)
        for (int k = 0; k < 16; ++k) packed[packed_index_bf16(n, k, 16)] = b[n][k];
      for (int m0 = 0; m0 < 64; m0 += 16) {
        alignas(64) float acc[16][16] = {};
        Input x[16];
        for (int m = 0; m < 16; ++m) {
          x[m] = hopper::expand_input(a[m0 + m]);
          for (int n = 0; n < 8; ++n) acc[m][n] = std::bit_cast<float>(c[m0 + m][n]);
        }
        panel()(x, 16, packed, 1, 0xff, acc);
        for (int m = 0; m < 16; ++m)
          for (int n = 0; n < 8; ++n) {
            // A step that adds nothing may leave -0 as it was.
            const float got = acc[m][n] == 0 && d[m0 + m][n] == 0 ? 0.0f : acc[m][n];
            different += !same(got, std::bit_cast<float>(d[m0 + m][n]));
            ++outputs;
          }
      }
    }
  }
  EXPECT_EQ(outputs, 380 * 512);
  EXPECT_EQ(different, 0);
}

// The 33rd bit: 16 products of the largest mantissas and an accumulator of their exponent.
TEST_P(HopperKernels, SumsBeyond32Bits) {
  for (const uint16_t sign : {0, 0x8000})
    for (const float before : {0.25f, 0.5f, 0.75f, 1.0f, 1.99f, -1.99f, 3.5f}) {
      std::vector<bf16_t> x(16, 0x3fff), packed(256, 0x3fff | sign);
      alignas(64) float acc[16][16] = {};
      std::fill(acc[0], acc[0] + 16, before);
      const hopper::StepInput input = hopper::expand_input(x.data());
      panel()(&input, 1, packed.data(), 1, 0xffff, acc);
      EXPECT_EQ(acc[0][5], hopper_step(before, x.data(), packed.data())) << before << " " << sign;
    }
}

TEST_P(OrderKernels, Matmul) {
  uint64_t state = 1;
  struct Shape {
    int64_t rows, n, k;
    int split_k;
  };
  for (const Shape& s : {Shape{1, 16, 16, 1},
                         {3, 40, 40, 1},
                         {17, 33, 544, 1},
                         {5, 80, 256, 8},
                         {33, 16, 128, 2},
                         {2, 200, 1100, 1},
                         {100, 70, 64, 1}})
    for (const Data x_kind : kAllData)
      for (const Data w_kind : kAllData) {
        const auto x = activation(draw_all(x_kind, s.rows * s.k, state), s.rows, s.k);
        const auto w = pack(draw_all(w_kind, s.n * s.k, state), s.n, s.k);
        std::vector<float> bias(s.n), y[2];
        for (float& b : bias) b = bf16_to_f32(draw(Data::normal, state));
        for (auto& out : y) out.assign(s.rows * (s.n + 3), 0.5f);
        const bool accumulate = next_random(state) % 2, has_bias = next_random(state) % 2;
        for (const bool is_fast : {false, true}) {
          const MatmulParams p{
              .x = {const_cast<bf16_t*>(x.data()), DType::bf16, activation_stride(s.k)},
              .w = {w.data(), DType::bf16, s.n, s.k},
              .rows = s.rows,
              .split_k = s.split_k,
              .bias = has_bias ? bias.data() : nullptr,
              .accumulate = accumulate,
              .y = y[is_fast].data(),
              .y_stride = s.n + 3};
          const int parts = is_fast ? 3 : 1;
          for (int i = 0; i < parts; ++i)
            is_fast ? matmul(p, {.share = {i, parts}}) : scalar_.matmul(p, {.share = {i, parts}});
        }
        EXPECT_EQ(differences(y[0], y[1]), 0)
            << s.rows << "x" << s.n << "x" << s.k << " data " << int(x_kind) << ", " << int(w_kind);
      }
}

TEST_P(OrderKernels, GatedMatmul) {
  uint64_t state = 2;
  const int64_t rows = 5, k = 96;
  for (const int64_t width : {16, 24, 40, 72})
    for (const Data kind : kAllData) {
      const auto x = activation(draw_all(kind, rows * k, state), rows, k);
      const auto gate = pack(draw_all(kind, width * k, state), width, k);
      const auto up = pack(draw_all(Data::normal, width * k, state), width, k);
      const int64_t panel = round_up(k, 32) * 16;
      std::vector<bf16_t> both(2 * gate.size());
      for (size_t i = 0; i < gate.size(); ++i) {
        both[(i / panel * 2) * panel + i % panel] = gate[i];
        both[(i / panel * 2 + 1) * panel + i % panel] = up[i];
      }
      std::vector<float> bias(width, 0.25f);
      std::vector<bf16_t> y[2];
      for (auto& out : y) out.assign(rows * activation_stride(width), 0x1234);
      for (const bool is_fast : {false, true}) {
        const GatedMatmulParams p{
            .x = {const_cast<bf16_t*>(x.data()), DType::bf16, activation_stride(k)},
            .gate_up = {both.data(), DType::bf16, width, k},
            .rows = rows,
            .gate_bias = width == 24 ? bias.data() : nullptr,
            .up_bias = width == 40 ? bias.data() : nullptr,
            .out = {y[is_fast].data(), DType::bf16, activation_stride(width)},
            .curve = width == 40      ? Nonlinearity::gelu_tanh
                     : width % 3 == 0 ? Nonlinearity::clamped
                                      : Nonlinearity::silu};
        const int parts = is_fast ? 2 : 1;
        for (int i = 0; i < parts; ++i)
          (is_fast ? fast_ : scalar_).gated_matmul(p, {.share = {i, parts}});
      }
      EXPECT_EQ(differences(y[0], y[1]), 0) << width << " data " << int(kind);
    }
}

TEST_P(OrderKernels, Attention) {
  uint64_t state = 3;
  for (const int head_dim : {16, 40, 128})
    for (const int window : {0, 50})
      for (const Data kind : {Data::normal, Data::wide, Data::tiny, Data::any_finite}) {
        const int heads = 6, kv_heads = 2, block_size = head_dim == 40 ? 32 : 64, blocks = 20;
        KvLayer kv{.block_size = block_size, .kv_heads = kv_heads, .head_dim = head_dim};
        std::vector<bf16_t> keys = draw_all(kind, blocks * kv_heads * kv.key_block(), state);
        std::vector<bf16_t> values = draw_all(kind, blocks * kv_heads * kv.value_block(), state);
        kv.keys = keys.data();
        kv.values = values.data();
        // Pad elements of keys are zero.
        for (int block = 0; block < blocks; ++block)
          for (int g = 0; g < kv_heads; ++g)
            for (int slot = 0; slot < block_size; ++slot)
              for (int e = head_dim; e < round_up(head_dim, 32); ++e)
                keys[kv.key_index(block, g, slot, e)] = 0;

        std::vector<int32_t> table[2], positions, table_of;
        for (int i = 0; i < blocks; ++i) table[i % 2].push_back(i);
        const int32_t* tables[] = {table[0].data(), table[1].data()};
        for (const int position : {0, 1, 15, 16, 127, 128, 140, 255})
          positions.push_back(position), table_of.push_back(0);
        for (const int position : {31, 129, 300})
          positions.push_back(position), table_of.push_back(1);
        const int64_t rows = positions.size(), padded = round_up(head_dim, 32);
        std::vector<bf16_t> q =
            draw_all(kind == Data::any_finite ? Data::wide : kind, rows * heads * padded, state);
        for (int64_t i = 0; i < rows * heads; ++i)
          std::fill(&q[i * padded + head_dim], q.data() + (i + 1) * padded, bf16_t{0});
        const int64_t stride = activation_stride(heads * head_dim);
        std::vector<bf16_t> out[2];
        for (auto& o : out) o.assign(rows * stride, 0x1234);
        for (const bool is_fast : {false, true}) {
          const AttentionParams p{.q = q.data(),
                                  .rows = rows,
                                  .heads = heads,
                                  .positions = positions.data(),
                                  .table_of = table_of.data(),
                                  .tables = tables,
                                  .window = window,
                                  .kv = kv,
                                  .out = {out[is_fast].data(), DType::bf16, stride},
                                  .score_scale = head_dim == 40 ? 0.3 : 0.0,
                                  .score_cap = head_dim == 40 && window > 0 ? 2.0f : 0.0f};
          const int parts = is_fast ? 3 : 1;
          for (int i = 0; i < parts; ++i)
            (is_fast ? fast_ : scalar_).attention(p, {.share = {i, parts}});
        }
        EXPECT_EQ(differences(out[0], out[1]), 0)
            << head_dim << " window " << window << " data " << int(kind);
      }
}

INSTANTIATE_TEST_SUITE_P(Sets, HopperKernels, testing::Values("avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(
    Sets, OrderKernels,
    testing::Values(Tried{"hopper_avx2", "avx2", Order::hopper},
                    Tried{"hopper_avx512", "avx512", Order::hopper},
                    Tried{"pair_avx2", "avx2", Order::pair},
                    Tried{"pair_avx512", "avx512", Order::pair},
                    Tried{"pair_amx", "amx", Order::pair},
                    Tried{"pair_avx512_fma", "avx512", Order::pair, cpu::pair_product_avx512},
                    Tried{"pair_avx512_bf16", "avx512", Order::pair, cpu::pair_product_avx512bf16,
                          cpu::pair_instruction_holds}),
    [](const auto& info) { return std::string(info.param.name); });

// The control: what a product gives in one order it does not give in another.
TEST(Orders, OfKernelsShow) {
  const ScopedFlushToZero flush;
  uint64_t state = 5;
  const auto x = activation(draw_all(Data::normal, 4 * 256, state), 4, 256);
  const auto w = pack(draw_all(Data::normal, 16 * 256, state), 16, 256);
  std::vector<std::vector<float>> all;
  for (const Order order : {Order::portable, Order::hopper, Order::pair}) {
    std::vector<float>& y = all.emplace_back(4 * 16);
    select_kernels(order, "auto")
        .matmul({.x = {const_cast<bf16_t*>(x.data()), DType::bf16, activation_stride(256)},
                 .w = {w.data(), DType::bf16, 16, 256},
                 .rows = 4,
                 .split_k = 1,
                 .bias = nullptr,
                 .accumulate = false,
                 .y = y.data(),
                 .y_stride = 16},
                {});
  }
  EXPECT_NE(all[0], all[1]);
  EXPECT_NE(all[0], all[2]);
  EXPECT_NE(all[1], all[2]);
}

// Where the instruction is there it is a step of the order: on 64 x 65536 pairs of random bits.
TEST(Orders, ThePairsInstructionIsItsStep) {
  if (!cpu::has_avx512_bf16()) GTEST_SKIP() << "this machine has no dot products of bf16";
  EXPECT_TRUE(cpu::pair_instruction_holds());
  const ScopedFlushToZero flush;
  uint64_t state = 6;
  int64_t different = 0, other_way_round = 0;
  for (int i = 0; i < 65536 * 4; ++i) {
    const Data kind = kAllData[i % 8];
    bf16_t x[32], w[32];
    float chain[16], out[16];
    for (bf16_t& v : x) v = draw(kind, state);
    for (bf16_t& v : w) v = draw(kind, state);
    for (float& v : chain)
      v = std::bit_cast<float>(uint32_t{draw(kind, state)} << 16 | (next_random(state) & 0xffff));
    cpu::pair_steps_avx512bf16(reinterpret_cast<const uint32_t*>(x),
                               reinterpret_cast<const uint32_t*>(w), chain, out);
    for (int j = 0; j < 16; ++j) {
      const float xs[] = {bf16_to_f32(x[2 * j]), bf16_to_f32(x[2 * j + 1]), bf16_to_f32(x[2 * j])};
      const float ws[] = {bf16_to_f32(w[2 * j]), bf16_to_f32(w[2 * j + 1]), bf16_to_f32(w[2 * j])};
      different += !same(orders::pair_step(chain[j], xs, ws), out[j]);
      other_way_round += !same(orders::pair_step(chain[j], xs + 1, ws + 1), out[j]);
    }
  }
  EXPECT_EQ(different, 0);
  EXPECT_GT(other_way_round, 10000);  // the control
}

}  // namespace
}  // namespace invar
