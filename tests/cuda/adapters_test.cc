// Low-rank adapters on a GPU, of both orders: the kernels against numerics 2.4 as it is written.
#include "kernels/adapters.h"

#include "cuda_check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/pack.h"

namespace invar {
namespace {

constexpr std::array kOrders = {Order::portable, Order::hopper};

int64_t address_of(const void* data) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
}

// One tensor of an adapter: row-major and as the GPU reads it.
template <typename T>
struct AdapterTensor {
  int64_t n, rank;
  PackPlace place;
  float scale;
  int64_t inner = 0;
  std::vector<T> a = {}, b = {};
};

template <typename T>
struct TestAdapter {
  std::vector<AdapterTensor<T>> tensors;
  std::vector<std::unique_ptr<Twin<T>>> memory;
  AdapterSlot slot;
};

struct AdapterCase {
  int64_t rows, k;
  int split_k = 1;
  int32_t tile_rows = kFewAdapterRows;
  bool is_pair = false;
  // The ranks of each adapter's tensors.
  std::vector<std::vector<int64_t>> ranks;
};

template <typename T>
class AdapterProduct {
 public:
  static constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;

  AdapterProduct(Device& gpu, Order order, const AdapterCase& c)
      : gpu_(gpu),
        order_(order),
        layout_(cuda::kernels(order).weights),
        case_(c),
        random_(static_cast<uint64_t>(c.rows + c.k)),
        x_(random_rows<T>(gpu, random_, c.rows, c.k)),
        y_(gpu, random_floats(random_, c.rows * columns())) {
    for (const auto& ranks : c.ranks) add(ranks);
  }

  // Rows have the adapters in turn, and after each turn one row has none.
  int64_t adapter_of(int64_t t) const {
    const int64_t turn = std::ssize(case_.ranks) + 1, at = t * 7 % turn;
    return at == turn - 1 ? -1 : at;
  }

  // Whether the GPU's y is the definition's. `spoiled`: the GPU's B has other signs.
  ::testing::AssertionResult matches(const Execution& on, bool spoiled = false) {
    if (spoiled) {
      Twin<T>& b = *adapters_[0].memory.back();
      for (T& value : b.host) value = as_element(-value_of(value));
      b.upload();
    }
    launch(on);
    const ScopedFlushToZero flush;
    for (int64_t t = 0; t < case_.rows; ++t)
      if (adapter_of(t) >= 0)
        for (const auto& tensor : adapters_[static_cast<size_t>(adapter_of(t))].tensors)
          add_as_written(t, tensor);
    return y_.matches();
  }

 private:
  int64_t outputs(size_t tensor) const { return case_.is_pair ? 37 : 20 + 300 * (tensor % 2); }
  Matrix pair() const {
    return {.type = kType, .n = outputs(0), .k = case_.k, .layout = layout_, .count = 2};
  }
  int64_t columns() const {
    if (case_.is_pair) return as_one(pair()).n;
    return outputs(0) + outputs(1) + outputs(2);
  }
  static T as_element(float value) {
    if constexpr (sizeof(T) == 2)
      return f32_to_bf16(value);
    else
      return value;
  }
  static float value_of(T value) {
    if constexpr (sizeof(T) == 2)
      return bf16_to_f32(value);
    else
      return value;
  }
  Matrix matrix(int64_t n, int64_t k) const {
    return {.type = kType, .n = n, .k = k, .layout = WeightLayout::panels};
  }
  std::vector<T> random_matrix(int64_t rows, int64_t width) {
    std::vector<T> values(static_cast<size_t>(rows * width));
    for (int64_t i = 0; i < rows; ++i)
      fill_row(random_, std::span(values).subspan(static_cast<size_t>(i * width),
                                                  static_cast<size_t>(width)));
    return values;
  }

  void add(const std::vector<int64_t>& ranks) {
    TestAdapter<T>& adapter = adapters_.emplace_back();
    int64_t inner = 0, output = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const PackPlace place =
          case_.is_pair ? column_of_pair(pair(), static_cast<int64_t>(i)) : PackPlace{output};
      adapter.tensors.push_back({.n = outputs(i),
                                 .rank = ranks[i],
                                 .place = place,
                                 .scale = 0.3F + static_cast<float>(i),
                                 .inner = inner});
      inner += round_up(ranks[i], kLeafPad);
      output += outputs(i);
    }
    const Matrix a = matrix(inner, case_.k);
    Twin<T>& packed_a = pack_into(adapter, a);
    for (AdapterTensor<T>& tensor : adapter.tensors) {
      tensor.a = random_matrix(tensor.rank, case_.k);
      pack_rows(a, tensor.a.data(), case_.k, 0, tensor.rank, {tensor.inner}, packed_a.host.data());
    }
    packed_a.upload();
    adapter.slot.a = packed_a.device();
    for (AdapterTensor<T>& tensor : adapter.tensors) {
      const Matrix b = matrix(tensor.n, tensor.rank);
      Twin<T>& packed = pack_into(adapter, b);
      tensor.b = random_matrix(tensor.n, tensor.rank);
      pack_rows(b, tensor.b.data(), tensor.rank, 0, tensor.n, {}, packed.host.data());
      packed.upload();
      adapter.slot.outputs[adapter.slot.tensors++] = {
          .b = packed.device(),
          .scale = tensor.scale,
          .n = static_cast<int32_t>(tensor.n),
          .rank = static_cast<int32_t>(tensor.rank),
          .inner = static_cast<int32_t>(tensor.inner),
          .output = static_cast<int32_t>(tensor.place.output),
          .step = tensor.place.step};
    }
    width_ = std::max(width_, inner);
  }
  Twin<T>& pack_into(TestAdapter<T>& adapter, const Matrix& w) {
    adapter.memory.push_back(std::make_unique<Twin<T>>(gpu_, w.elements()));
    Twin<T>& packed = *adapter.memory.back();
    EXPECT_EQ(address_of(packed.device()) % 64, 0);
    std::ranges::fill(packed.host, T{0});
    return packed;
  }

  void launch(const Execution& on) {
    constexpr int64_t kSpareTiles = 3, kStride = 2;
    std::vector<int32_t> rows;
    std::vector<AdapterTile> tiles;
    std::vector<AdapterSlot> slots(adapters_.size() * kStride);
    for (size_t g = 0; g < adapters_.size(); ++g) {
      slots[g * kStride] = adapters_[g].slot;
      const auto first = static_cast<int32_t>(rows.size());
      for (int64_t t = 0; t < case_.rows; ++t)
        if (adapter_of(t) == static_cast<int64_t>(g)) rows.push_back(static_cast<int32_t>(t));
      const auto end = static_cast<int32_t>(rows.size());
      for (int32_t at = first; at < end; at += case_.tile_rows)
        tiles.push_back({static_cast<int32_t>(g), at, std::min(case_.tile_rows, end - at)});
    }
    tiles.resize(tiles.size() + kSpareTiles);
    rows.resize(rows.size() + 1);  // that there are some
    const DeviceArray<int32_t> rows_there = there(rows);
    const DeviceArray<AdapterTile> tiles_there = there(tiles);
    const DeviceArray<AdapterSlot> slots_there = there(slots);
    Twin<float> sums(gpu_, case_.rows * width_);
    const AdapterParams params{
        .tables = {.tiles = tiles_there.data(),
                   .rows = rows_there.data(),
                   .num_tiles = static_cast<int32_t>(tiles.size()),
                   .tile_rows = case_.tile_rows,
                   .slots = slots_there.data(),
                   .slot_stride = kStride,
                   .inner_units = static_cast<int32_t>(width_ / kAdapterUnit),
                   .outputs = columns(),
                   .k = case_.k},
        .x = {x_.device(), kType, activation_stride(case_.k)},
        .split_k = case_.split_k,
        .sums = sums.device(),
        .sums_stride = width_,
        .inner = {},
        .y = y_.device(),
        .y_stride = columns()};
    const Kernels kernels = cuda::kernels(order_);
    kernels.adapter_shrink(params, on);
    kernels.adapter_expand(params, on);
    on.stream->wait();
  }
  template <typename Element>
  DeviceArray<Element> there(const std::vector<Element>& values) const {
    DeviceArray<Element> array(gpu_, values.size(), "a test's table");
    gpu_.upload(array.data(), values.data(), values.size() * sizeof(Element));
    return array;
  }

  float dot(const T* x, const T* w, int64_t k, int runs) const {
    if constexpr (sizeof(T) == 2)
      return orders::dot(order_, x, w, k, runs);
    else
      return orders::dot(x, w, k, runs);
  }
  void add_as_written(int64_t t, const AdapterTensor<T>& tensor) {
    const T* x = x_.host.data() + t * activation_stride(case_.k);
    std::vector<T> u;
    for (int64_t r = 0; r < tensor.rank; ++r)
      u.push_back(
          as_element(dot(x, tensor.a.data() + r * case_.k, case_.k, case_.split_k) * tensor.scale));
    for (int64_t n = 0; n < tensor.n; ++n) {
      const int64_t column = tensor.place.output + n / 16 * 16 * tensor.place.step + n % 16;
      float& y = y_.host[static_cast<size_t>(t * columns() + column)];
      y = y + dot(u.data(), tensor.b.data() + n * tensor.rank, tensor.rank, 1);
    }
  }

  Device& gpu_;
  Order order_;
  WeightLayout layout_;
  AdapterCase case_;
  Random random_;
  Twin<T> x_;
  Twin<float> y_;
  std::vector<TestAdapter<T>> adapters_;
  int64_t width_ = 0;
};

class AdaptersOnGpu : public CudaTest {
 protected:
  void expect_as_written(const AdapterCase& c) {
    for (const Order order : kOrders) {
      if (order == Order::portable && c.tile_rows != kFewAdapterRows) continue;
      EXPECT_TRUE(AdapterProduct<bf16_t>(gpu(), order, c).matches(on()))
          << name_of(order) << ", " << c.rows << " rows, K " << c.k << ", " << c.split_k << " runs";
    }
    if (c.tile_rows == kFewAdapterRows) {
      EXPECT_TRUE(AdapterProduct<float>(gpu(), Order::portable, c).matches(on()))
          << "f32, " << c.rows << " rows, K " << c.k;
    }
  }
};

TEST_F(AdaptersOnGpu, ProductsAreAsWritten) {
  const std::vector<std::vector<int64_t>> ranks = {{1, 8, 16}, {200}, {16, 3}, {40, 256, 17}};
  for (const int32_t tile_rows : {kFewAdapterRows, kManyAdapterRows})
    for (const auto& [k, split_k] : {std::pair<int64_t, int>{70, 1}, {128, 4}, {256, 2}, {1024, 8}})
      for (const int64_t rows : {1, 9, 170})
        expect_as_written(
            {.rows = rows, .k = k, .split_k = split_k, .tile_rows = tile_rows, .ranks = ranks});
  expect_as_written({.rows = 5, .k = 4096, .ranks = ranks});
}

TEST_F(AdaptersOnGpu, EveryRowMayHaveItsOwn) {
  expect_as_written(
      {.rows = 65, .k = 96, .ranks = std::vector<std::vector<int64_t>>(64, {16, 16, 16})});
}

TEST_F(AdaptersOnGpu, PairsAreAsWritten) {
  for (const int32_t tile_rows : {kFewAdapterRows, kManyAdapterRows})
    expect_as_written({.rows = 60,
                       .k = 96,
                       .tile_rows = tile_rows,
                       .is_pair = true,
                       .ranks = {{16, 5}, {33, 1}}});
}

TEST_F(AdaptersOnGpu, OtherSignsAreSeen) {
  const AdapterCase c{.rows = 20, .k = 64, .ranks = {{8}, {8}}};
  for (const Order order : kOrders)
    EXPECT_FALSE(AdapterProduct<bf16_t>(gpu(), order, c).matches(on(), true));
}

// The steps around the pair: biases, then the curve, whose bits are the fused kernel's on the CPU.
TEST_F(AdaptersOnGpu, BiasesAndCurves) {
  Random random(5);
  for (const Order order : kOrders)
    for (const Nonlinearity curve :
         {Nonlinearity::silu, Nonlinearity::gelu_tanh, Nonlinearity::clamped})
      for (const int64_t width : {16, 37, 300}) {
        constexpr int64_t kRows = 3;
        const Kernels kernels = cuda::kernels(order);
        const Matrix pair{.n = width, .k = 32, .layout = kernels.weights, .count = 2};
        const int64_t columns = as_one(pair).n, out_width = round_up(width, kLeafPad);
        const Twin<float> bias(gpu(), random_floats(random, width));
        Twin<float> dots(gpu(), random_floats(random, kRows * columns));
        Twin<bf16_t> out(gpu(), kRows * out_width);
        for (int64_t which = 0; which < 2; ++which) {
          const PackPlace place = column_of_pair(pair, which);
          kernels.add_bias({.x = dots.device(),
                            .x_stride = columns,
                            .rows = kRows,
                            .width = width,
                            .bias = bias.device(),
                            .output = place.output,
                            .step = place.step},
                           on());
          for (int64_t t = 0; t < kRows; ++t)
            for (int64_t n = 0; n < width; ++n)
              dots.host[t * columns + place.output + n / 16 * 16 * place.step + n % 16] +=
                  bias.host[n];
        }
        kernels.gate_pairs(
            {dots.device(), columns, kRows, width, curve, {out.device(), DType::bf16, out_width}},
            on());
        on().stream->wait();
        EXPECT_TRUE(dots.matches());
        const ScopedFlushToZero flush;
        for (int64_t t = 0; t < kRows; ++t)
          for (int64_t f = 0; f < out_width; ++f) {
            const auto dot = [&](int64_t which) {
              const PackPlace at = column_of_pair(pair, which);
              return dots.host[t * columns + at.output + f / 16 * 16 * at.step + f % 16];
            };
            out.host[t * out_width + f] =
                f < width ? f32_to_bf16(math::gated(curve, dot(0), dot(1))) : bf16_t{0};
          }
        EXPECT_TRUE(out.matches()) << width;
      }
}

}  // namespace
}  // namespace invar
