// Low-rank adapters of every instruction set against numerics 2.4 as it is written, bit by bit.
#include "kernels/adapters.h"

#include <algorithm>

#include "kernel_check.h"
#include "kernels/pack.h"
#include "kernels/select.h"
#include "numerics/math.h"

namespace invar {
namespace {

struct Tensor {
  int64_t n, rank, output;
  int step;
  float scale;
};

// A product of K = k with rows of two adapters and of none.
template <typename T>
class Case {
 public:
  static constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  static constexpr int64_t kRows = 150;

  Case(Random& random, int64_t k, int split_k) : k_(k), split_k_(split_k), x_(kRows * stride()) {
    std::fill(x_.span().begin(), x_.span().end(), T{0});
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<T> row(static_cast<size_t>(k));
      for (T& value : row) value = as_element(random.uniform());
      std::ranges::copy(row, &x_[t * stride()]);
    }
    adapters_ = {{{40, 3, 0, 1, 0.7F}, {16, 16, 40, 1, 2.0F}, {17, 40, 56, 1, -0.3F}},
                 {{37, 5, 0, 2, 1.5F}, {37, 5, 16, 2, 0.25F}}};
    for (const auto& tensors : adapters_) fill(random, tensors);
    for (auto& value : y_) value = random.uniform();
  }

  // Rows 0 .. 1, 5 and 20 .. 148 have the first adapter, 3 and 149 the second.
  static int adapter_of(int64_t t) {
    return t < 2 || t == 5 || (t >= 20 && t < 149) ? 0 : t == 3 || t == 149 ? 1 : -1;
  }

  std::vector<float> expected(Order order) const {
    std::vector<float> y = y_;
    for (int64_t t = 0; t < kRows; ++t) {
      if (adapter_of(t) < 0) continue;
      const size_t g = static_cast<size_t>(adapter_of(t));
      for (size_t i = 0; i < adapters_[g].size(); ++i) add(order, t, g, i, y);
    }
    return y;
  }

  std::vector<float> found(const Kernels& kernels, int parts) const {
    std::vector<float> y = y_;
    const std::vector<RowRun> runs[2] = {{{0, 2}, {5, 1}, {20, 129}}, {{3, 1}, {149, 1}}};
    std::vector<AdapterGroup> groups;
    std::vector<std::vector<AdapterOutputs>> outputs(2);
    int64_t width = 0;
    for (size_t g = 0; g < 2; ++g) {
      int64_t inner = 0;
      for (size_t i = 0; i < adapters_[g].size(); ++i) {
        const Tensor& of = adapters_[g][i];
        outputs[g].push_back(
            {matrix(packed_b_[number(g, i)], of.n, of.rank), of.scale, inner, of.output, of.step});
        inner += round_up(of.rank, kLeafPad);
      }
      groups.push_back({.a = matrix(packed_a_[g], inner, k_),
                        .outputs = outputs[g].data(),
                        .tensors = static_cast<int32_t>(outputs[g].size()),
                        .runs = runs[g].data(),
                        .num_runs = static_cast<int32_t>(runs[g].size()),
                        .rows = g == 0 ? 132 : 2});
      width = std::max(width, inner);
    }
    Guarded<float> sums(kRows * width);
    Guarded<T> inner(kRows * width);
    const AdapterParams params{.groups = groups.data(),
                               .num_groups = 2,
                               .x = {x_.data(), kType, stride()},
                               .split_k = split_k_,
                               .sums = sums.data(),
                               .sums_stride = width,
                               .inner = {inner.data(), kType, width},
                               .y = y.data(),
                               .y_stride = kOutputs,
                               .matmul = kernels.matmul};
    for (const auto operation :
         {kernels.adapter_shrink, kernels.adapter_round, kernels.adapter_expand})
      run_in_parts(parts, [&](const Execution& on) { operation(params, on); });
    EXPECT_TRUE(sums.guards_are_intact() && inner.guards_are_intact());
    return y;
  }

 private:
  static constexpr int64_t kOutputs = 90;
  static T as_element(float value) {
    if constexpr (sizeof(T) == 2)
      return f32_to_bf16(value);
    else
      return value;
  }
  int64_t stride() const { return activation_stride(k_); }
  static size_t number(size_t g, size_t i) { return 3 * g + i; }
  Matrix matrix(const std::vector<std::byte>& data, int64_t n, int64_t k) const {
    const auto at = reinterpret_cast<uintptr_t>(data.data());
    return {.data = reinterpret_cast<const void*>(round_up(static_cast<int64_t>(at), 64)),
            .type = kType,
            .n = n,
            .k = k};
  }

  std::vector<T> random_matrix(Random& random, int64_t rows, int64_t columns) {
    std::vector<T> values(static_cast<size_t>(rows * columns));
    for (T& value : values) value = as_element(random.uniform());
    return values;
  }

  void fill(Random& random, const std::vector<Tensor>& tensors) {
    int64_t inner = 0;
    for (const Tensor& of : tensors) inner += round_up(of.rank, kLeafPad);
    auto& packed = packed_a_.emplace_back(matrix({}, inner, k_).bytes() + 64);
    const Matrix all = matrix(packed, inner, k_);
    inner = 0;
    packed_b_.resize(3 * packed_a_.size());
    a_.resize(packed_b_.size());
    b_.resize(packed_b_.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& of = tensors[i];
      const size_t at = number(packed_a_.size() - 1, i);
      a_[at] = random_matrix(random, of.rank, k_);
      b_[at] = random_matrix(random, of.n, of.rank);
      pack_rows(all, a_[at].data(), k_, 0, of.rank, {inner}, const_cast<void*>(all.data));
      packed_b_[at].resize(static_cast<size_t>(matrix({}, of.n, of.rank).bytes() + 64));
      const Matrix b = matrix(packed_b_[at], of.n, of.rank);
      pack_rows(b, b_[at].data(), of.rank, 0, of.n, {}, const_cast<void*>(b.data));
      inner += round_up(of.rank, kLeafPad);
    }
  }

  float dot(Order order, const T* x, const T* w, int64_t k, int runs) const {
    if constexpr (sizeof(T) == 2)
      return orders::dot(order, x, w, k, runs);
    else
      return orders::dot(x, w, k, runs);
  }

  void add(Order order, int64_t t, size_t g, size_t i, std::vector<float>& y) const {
    const Tensor& of = adapters_[g][i];
    const size_t at = number(g, i);
    std::vector<T> u;
    for (int64_t r = 0; r < of.rank; ++r)
      u.push_back(as_element(dot(order, &x_[t * stride()], a_[at].data() + r * k_, k_, split_k_) *
                             of.scale));
    for (int64_t n = 0; n < of.n; ++n) {
      const int64_t column = of.output + n / 16 * 16 * of.step + n % 16;
      float& out = y[static_cast<size_t>(t * kOutputs + column)];
      out = out + dot(order, u.data(), b_[at].data() + n * of.rank, of.rank, 1);
    }
  }

  int64_t k_;
  int split_k_;
  Guarded<T> x_;
  std::vector<std::vector<Tensor>> adapters_;
  std::vector<std::vector<T>> a_, b_;
  std::vector<std::vector<std::byte>> packed_a_, packed_b_;
  std::vector<float> y_ = std::vector<float>(static_cast<size_t>(kRows * kOutputs));
};

class Adapters : public KernelTest {};

template <typename T>
void expect_as_written(const Kernels& kernels) {
  const ScopedFlushToZero flush;
  Random random(3);
  for (const auto& [k, split_k] : {std::pair<int64_t, int>{70, 1}, {128, 4}, {256, 2}}) {
    const Case<T> one(random, k, split_k);
    const std::vector<float> expected = one.expected(kernels.order);
    for (const int parts : {1, 3}) EXPECT_EQ(one.found(kernels, parts), expected) << k;
    if (split_k > 1) {
      EXPECT_NE(Case<T>(random, k, 1).expected(kernels.order), expected);
    }
  }
}

TEST_P(Adapters, AreAsWritten) {
  expect_as_written<bf16_t>(kernels());
  expect_as_written<float>(kernels());
  if (GetParam() == "amx_emulated") return;
  for (const Order order : {Order::hopper, Order::pair})
    expect_as_written<bf16_t>(select_kernels(order, GetParam()));
}

TEST_P(Adapters, PairsAreGatedAsByTheFusedKernel) {
  Random random(5);
  for (const Nonlinearity curve :
       {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::clamped})
    for (const int64_t width : {16, 37, 300}) {
      constexpr int64_t kRows = 3;
      const int64_t columns = 2 * round_up(width, kPanelWidth), out = round_up(width, kLeafPad);
      std::vector<float> dots(static_cast<size_t>(kRows * columns));
      for (float& value : dots) value = random.uniform() * 8;
      for (const DType type : {DType::bf16, DType::f32}) {
        Guarded<float> expected(kRows * out), found(kRows * out);
        for (auto [to, table] : {std::pair{&expected, &scalar()}, {&found, &kernels()}})
          run_in_parts(2, [&, to = to, table = table](const Execution& on) {
            table->gate_pairs({dots.data(), columns, kRows, width, curve, {to->data(), type, out}},
                              on);
          });
        EXPECT_TRUE(same(expected, found));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Sets, Adapters, ::testing::ValuesIn(tested_sets()), set_name);

}  // namespace
}  // namespace invar
