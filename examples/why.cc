// Why answers of language models change from run to run, in three steps; after "Defeating
// Nondeterminism in LLM Inference" (He et al., 2025):
//   1. the order of a sum changes its result;
//   2. and yet one computation, repeated, gives the same bits: it is not chance;
//   3. what changes the order is the batch. A conventional kernel chooses how to cut its sums by
//      the number of rows, so a row's result depends on its neighbours. Invar's order depends on
//      the shape of one row alone.
// Exit status 1 when Invar's bits are not what this promises, or the conventional ones do not
// differ (then the comparison would show nothing).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "device/device.h"
#include "kernels/pack.h"
#include "kernels/select.h"

namespace {

using namespace invar;

using Terms = std::array<double, 8>;

// Fills the state of std::mt19937 as Python's random.seed(seed) does (init_by_array of Matsumoto
// and Nishimura), so that the orders below are those of the article.
struct PythonSeed {
  using result_type = uint32_t;
  uint32_t seed;

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) const {
    const int n = static_cast<int>(end - begin);
    begin[0] = 19650218;
    for (int i = 1; i < n; ++i)
      begin[i] = 1812433253u * (begin[i - 1] ^ (begin[i - 1] >> 30)) + static_cast<uint32_t>(i);
    const auto mix = [&](int i, uint32_t factor, uint32_t addend) {
      begin[i] = (begin[i] ^ ((begin[i - 1] ^ (begin[i - 1] >> 30)) * factor)) + addend;
      if (i == n - 1) begin[0] = begin[i];
    };
    for (int i = 0; i < n; ++i) mix(i % (n - 1) + 1, 1664525, seed);
    for (int i = 0; i < n - 1; ++i) {
      const int at = (i + 1) % (n - 1) + 1;
      mix(at, 1566083941, 0u - static_cast<uint32_t>(at));
    }
    begin[0] = 0x80000000;
  }
};

// Python's random.shuffle.
void shuffle(Terms& terms, std::mt19937& random) {
  for (uint32_t i = terms.size() - 1; i > 0; --i) {
    uint32_t j;
    do j = random() >> std::countl_zero(i + 1);
    while (j > i);
    std::swap(terms[i], terms[j]);
  }
}

template <typename Real>
double plain_sum(const Terms& terms) {
  Real sum = 0;
  for (const double x : terms) sum += static_cast<Real>(x);
  return sum;
}

// sum() of Python 3.12 and later: what rounding takes from a float is collected and added at the
// end (Neumaier), what it takes from an integer, here 1 and -1, is lost. The article's number.
double python_sum(const Terms& terms) {
  double sum = 0, lost = 0;
  bool is_float = false;
  for (const double x : terms) {
    const double next = sum + x;
    if (std::fabs(x) != 1) {
      if (is_float) lost += std::fabs(sum) >= std::fabs(x) ? (sum - next) + x : (x - next) + sum;
      is_float = true;
    }
    sum = next;
  }
  return sum + lost;
}

// Distinct sums of four numbers and their negatives, over 10000 random orders.
int distinct_sums(double (*sum)(const Terms&)) {
  Terms terms = {1e-10, 1e-5, 1e-2, 1, -1e-10, -1e-5, -1e-2, -1};
  PythonSeed seed{42};
  std::mt19937 random(seed);
  std::set<double> sums;
  for (int i = 0; i < 10000; ++i) {
    shuffle(terms, random);
    sums.insert(sum(terms));
  }
  return static_cast<int>(sums.size());
}

// Matrices row-major: x [rows][kInner], w [kInner][kOutputs], y [rows][kOutputs].
constexpr int kInner = 4096, kOutputs = 64, kRows = 2048;
using Values = std::vector<float>;

// `count` numbers from -1000 to 1000 in equal steps.
Values linspace(int64_t count) {
  Values values(count);
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(-1000.0 + 2000.0 * static_cast<double>(i) /
                                                 static_cast<double>(count - 1));
  return values;
}

// A product as a library for speed would write it. Few rows do not fill the machine, so the inner
// size is split into 32 parts that can run side by side (split-K) and are added at the end; with
// many rows every output has one chain, and a block of outputs stays in registers.
void conventional(const Values& x, const Values& w, int rows, Values& y) {
  const int parts = rows < 16 ? 32 : 1;
  const int length = kInner / parts;
  y.assign(int64_t{rows} * kOutputs, 0.0f);
  for (int t = 0; t < rows; ++t)
    for (int part = 0; part < parts; ++part) {
      float sums[kOutputs] = {};
      for (int k = part * length; k < (part + 1) * length; ++k)
        for (int n = 0; n < kOutputs; ++n)
          sums[n] = std::fma(x[int64_t{t} * kInner + k], w[int64_t{k} * kOutputs + n], sums[n]);
      for (int n = 0; n < kOutputs; ++n) y[int64_t{t} * kOutputs + n] += sums[n];
    }
}

// The same product by Invar's kernels for this machine, weights packed as an engine packs them.
class InvarProduct {
 public:
  explicit InvarProduct(const Values& w)
      : kernels_(select_kernels(Order::portable, "auto")),
        device_(make_host_device()),
        weight_{.type = DType::f32, .n = kOutputs, .k = kInner},
        packed_(*device_, weight_.elements(), "the weights"),
        pool_(0) {
    Values rows(w.size());  // [output][inner]
    for (int64_t k = 0; k < kInner; ++k)
      for (int64_t n = 0; n < kOutputs; ++n) rows[n * kInner + k] = w[k * kOutputs + n];
    pack_rows(DType::f32, rows.data(), kInner, 0, kOutputs, kInner, {}, packed_.data());
    weight_.data = packed_.data();
  }

  const char* instruction_set() const { return kernels_.name; }

  void operator()(const Values& x, int rows, Values& y) {
    y.resize(int64_t{rows} * kOutputs);
    const MatmulParams params{
        .x = {const_cast<float*>(x.data()), DType::f32, kInner},
        .w = weight_,
        .rows = rows,
        .split_k = 1,
        .bias = nullptr,
        .accumulate = false,
        .y = y.data(),
        .y_stride = kOutputs,
    };
    Execution{.pool = &pool_}.run(kernels_.matmul, params);
  }

 private:
  Kernels kernels_;
  std::unique_ptr<Device> device_;
  Matrix weight_;
  DeviceArray<float> packed_;
  ThreadPool pool_;
};

// Repetitions of the product of `rows` rows whose bits are not those of the first.
template <typename Product>
int different_repetitions(Product&& product, const Values& x, int rows, int repetitions) {
  Values first, again;
  product(x, rows, first);
  int different = 0;
  for (int i = 1; i < repetitions; ++i) {
    product(x, rows, again);
    different += std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) != 0;
  }
  return different;
}

struct RowDifference {
  int outputs = 0;  // whose bits differ
  float largest = 0;
};

// The first row, computed alone and as one of kRows.
template <typename Product>
RowDifference alone_and_in_batch(Product&& product, const Values& x) {
  Values alone, batch;
  product(x, 1, alone);
  product(x, kRows, batch);
  RowDifference d;
  for (int n = 0; n < kOutputs; ++n) {
    d.outputs += std::memcmp(&alone[n], &batch[n], sizeof(float)) != 0;
    d.largest = std::max(d.largest, std::fabs(alone[n] - batch[n]));
  }
  return d;
}

int run() {
  std::printf(
      "1. Eight numbers, 1e-10, 1e-5, 1e-2, 1 and their negatives, summed in 10000 random "
      "orders:\n");
  const int f64 = distinct_sums(plain_sum<double>), f32 = distinct_sums(plain_sum<float>);
  const int python = distinct_sums(python_sum);
  std::printf("     %d different results in double precision, %d in single;\n", f64, f32);
  std::printf("     %d, the article's number, by sum() of Python 3.12, which makes up for what\n",
              python);
  std::printf("     rounding takes from floats, but not from the integers 1 and -1\n\n");

  const Values x = linspace(int64_t{kRows} * kInner), w = linspace(int64_t{kInner} * kOutputs);
  InvarProduct invar_product(w);
  const auto conventional_product = [&](const Values& rows_of_x, int rows, Values& y) {
    conventional(rows_of_x, w, rows, y);
  };
  std::printf("2. One product, [8][%d] times [%d][%d], repeated 1000 times:\n", kInner, kInner,
              kOutputs);
  const int conventional_repeats = different_repetitions(conventional_product, x, 8, 1000);
  const int invar_repeats = different_repetitions(invar_product, x, 8, 1000);
  std::printf("     conventional kernel   %d repetitions with other bits\n", conventional_repeats);
  std::printf("     Invar, %-8s       %d repetitions with other bits\n\n",
              invar_product.instruction_set(), invar_repeats);

  std::printf("3. One row, computed alone and in a batch of %d:\n", kRows);
  const RowDifference c = alone_and_in_batch(conventional_product, x);
  const RowDifference i = alone_and_in_batch(invar_product, x);
  std::printf("     conventional kernel   %d of %d outputs differ, by up to %g\n", c.outputs,
              kOutputs, c.largest);
  std::printf("     Invar, %-8s       %d of %d outputs differ\n", invar_product.instruction_set(),
              i.outputs, kOutputs);

  const bool holds = f64 > 1 && f32 > 1 && python == 102 && conventional_repeats == 0 &&
                     invar_repeats == 0 && c.outputs > 0 && i.outputs == 0;
  if (!holds) std::printf("\nThis is not as it should be.\n");
  return holds ? 0 : 1;
}

}  // namespace

int main() {
  return run();
}
