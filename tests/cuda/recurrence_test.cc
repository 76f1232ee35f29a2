// Recurrent layers' operations, of both orders, against the scalar definition.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "cuda_check.h"
#include "kernels/recurrent.h"
#include "kernels/select.h"

namespace invar {
namespace {

constexpr int kChunks = 3;

// A layer's memory and rows of one sequence on both sides.
class Twins {
 public:
  Twins(Device& gpu, Random& random, const RecurrentLayer& shape, int64_t rows)
      : shape_(shape),
        rows_(rows),
        keys_(gpu, zeros(kChunks * shape.key_heads * shape.key_elements())),
        values_(gpu, zeros(kChunks * shape.heads * shape.value_elements())),
        sums_(gpu, kChunks * shape.heads * shape.sum_elements()),
        states_(gpu, (kChunks + 1) * shape.heads * shape.state_elements()),
        operands_(gpu, (kChunks + 1) * shape.heads * shape.state_elements()),
        q_(gpu, rows * shape.key_heads * shape.padded_key() * words()),
        k_(gpu, std::ssize(q_.host)),
        inputs_(gpu, random_floats(random, rows * stride())),
        decays_(gpu, decays(random)),
        factors_(gpu, random_floats(random, rows * shape.heads)),
        out_(gpu, rows * shape.heads * shape.value_size),
        positions_(gpu, ascending(rows)),
        zeros_(gpu, std::vector<int32_t>(static_cast<size_t>(rows), 0)),
        begin_(gpu, ascending(rows + 1)),
        cells_(gpu, per_chunk(rows, 0)),
        state_of_(gpu, per_chunk(rows, -1)),
        next_(gpu, per_chunk(rows, 0)),
        table_(gpu, ascending(kChunks)),
        tables_(gpu, 1),
        device_tables_(gpu, std::vector<const int32_t*>{table_.device()}),
        sequence_(gpu, std::vector<int32_t>{0, 0}),
        flags_(gpu, std::vector<unsigned char>(static_cast<size_t>(rows), 0)) {
    tables_.host[0] = table_.host.data();
  }

  // Rows [first, last) on one side.
  void run(const Kernels& kernels, bool on_gpu, int64_t first, int64_t last, const Execution& at) {
    const auto of = [&](auto& twin, int64_t from = 0) {
      return (on_gpu ? twin.device() : twin.host.data()) + from;
    };
    RecurrentLayer layer = shape_;
    const auto cells = [&](auto& twin, int count) {
      return Cells{of(twin),
                   static_cast<int64_t>(std::ssize(twin.host) / count * sizeof(twin.host[0]))};
    };
    layer.keys = cells(keys_, kChunks), layer.values = cells(values_, kChunks);
    layer.sums = cells(sums_, kChunks);
    layer.states = cells(states_, kChunks + 1), layer.operands = cells(operands_, kChunks + 1);
    const RowPlaces places{
        last - first,      of(positions_, first),
        of(zeros_, first), on_gpu ? device_tables_.device() : tables_.host.data(),
        of(begin_),        of(cells_, first)};
    sequence_.host[1] = static_cast<int32_t>(last - first);
    sequence_.upload();
    bool* flags = reinterpret_cast<bool*>(of(flags_, first));
    const int64_t keys = shape_.key_heads * shape_.key_size, width = first * stride();
    const float* x = of(inputs_, width);
    kernels.recurrent_keys({.queries = x,
                            .keys = x + keys,
                            .stride = stride(),
                            .normalises = shape_.kind != Recurrence::state_space,
                            .eps = 1e-6f,
                            .scale = 0.125f,
                            .layer = layer,
                            .places = places,
                            .q = of(q_),
                            .k = of(k_),
                            .non_finite = flags},
                           at);
    kernels.recurrence({.layer = layer,
                        .places = places,
                        .q = of(q_),
                        .k = of(k_),
                        .v = x + 2 * keys,
                        .v_stride = stride(),
                        .decays = of(decays_, first * shape_.heads * shape_.channels()),
                        .factors = of(factors_, first * shape_.heads),
                        .skips = shape_.kind == Recurrence::state_space ? of(factors_) : nullptr,
                        .sequence_begin = of(sequence_),
                        .sequences = 1,
                        .state_of = of(state_of_, first),
                        .next_state = of(next_, first),
                        .out = of(out_, first * shape_.heads * shape_.value_size),
                        .out_stride = shape_.heads * shape_.value_size,
                        .non_finite = flags,
                        .matmul = kernels.matmul},
                       at);
  }
  // Of the GPU's side.
  void spoil_decays() {
    for (float& g : decays_.host) g = g - 1.0f;
    decays_.upload();
  }
  ::testing::AssertionResult match() const {
    if (auto result = out_.matches(); !result) return result << " (outputs)";
    if (auto result = keys_.matches(); !result) return result << " (keys)";
    if (auto result = values_.matches(); !result) return result << " (values)";
    if (auto result = sums_.matches(); !result) return result << " (sums)";
    if (auto result = states_.matches(); !result) return result << " (states)";
    return shape_.is_f32() ? ::testing::AssertionSuccess() : operands_.matches();
  }

 private:
  int64_t words() const { return shape_.is_f32() ? 2 : 1; }
  int64_t stride() const {
    return 2 * shape_.key_heads * shape_.key_size + shape_.heads * shape_.value_size;
  }
  std::vector<bf16_t> zeros(int64_t elements) const {
    return std::vector<bf16_t>(static_cast<size_t>(elements * words()), 0);
  }
  std::vector<float> decays(Random& random) const {
    std::vector<float> g = random_floats(random, rows_ * shape_.heads * shape_.channels());
    for (float& x : g) x = -0.2f * x * x;
    return g;
  }
  static std::vector<int32_t> ascending(int64_t count) {
    std::vector<int32_t> x(static_cast<size_t>(count));
    std::iota(x.begin(), x.end(), 0);
    return x;
  }
  static std::vector<int32_t> per_chunk(int64_t rows, int32_t more) {
    std::vector<int32_t> x;
    for (int64_t t = 0; t < rows; ++t) x.push_back(static_cast<int32_t>(t / kChunkSlots) + more);
    return x;
  }

  const RecurrentLayer shape_;
  const int64_t rows_;
  Twin<bf16_t> keys_, values_;
  Twin<float> sums_, states_;
  Twin<bf16_t> operands_, q_, k_;
  Twin<float> inputs_, decays_, factors_, out_;
  Twin<int32_t> positions_, zeros_, begin_, cells_, state_of_, next_, table_;
  Twin<const int32_t*> tables_, device_tables_;
  Twin<int32_t> sequence_;
  Twin<unsigned char> flags_;
};

using RecurrentOnGpu = CudaTest;

TEST_F(RecurrentOnGpu, RecurrencesInPieces) {
  struct Case {
    Order order;
    DType type;
  };
  for (const Case& c : {Case{Order::portable, DType::bf16}, Case{Order::portable, DType::f32},
                        Case{Order::hopper, DType::bf16}})
    for (const RecurrentLayer& shape : {RecurrentLayer{Recurrence::delta, 2, 4, 128, 128},
                                        RecurrentLayer{Recurrence::delta, 1, 1, 96, 192},
                                        RecurrentLayer{Recurrence::delta, 1, 2, 33, 17},
                                        RecurrentLayer{Recurrence::channel_delta, 2, 2, 128, 128},
                                        RecurrentLayer{Recurrence::channel_delta, 1, 1, 40, 20},
                                        RecurrentLayer{Recurrence::state_space, 1, 3, 128, 64}}) {
      RecurrentLayer layer = shape;
      layer.type = c.type;
      layer.layout = c.order == Order::hopper ? CacheLayout::rows : CacheLayout::panels;
      SCOPED_TRACE(fmt::format("kind {}, {} x {}, {}, {}", static_cast<int>(layer.kind),
                               layer.key_size, layer.value_size, name_of(c.order),
                               name_of(c.type)));
      constexpr int64_t kRows = 150;
      Random random(7);
      Twins twins(gpu(), random, layer, kRows);
      {
        const ScopedFlushToZero flush;
        twins.run(select_kernels(c.order, "scalar"), false, 0, kRows, {});
      }
      for (int64_t first = 0, last; first < kRows; first = last) {
        last = std::min<int64_t>(kRows, first + 1 + random.below(50));
        twins.run(cuda::kernels(c.order), true, first, last, on());
        on().stream->wait();
      }
      EXPECT_TRUE(twins.match());
      // Other decays are another result.
      twins.spoil_decays();
      twins.run(cuda::kernels(c.order), true, 0, 2, on());
      on().stream->wait();
      EXPECT_FALSE(twins.match());
    }
}

}  // namespace
}  // namespace invar
