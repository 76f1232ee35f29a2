// Writes what recurrent layers of small shapes take and give, for a second implementation
// (tests/numerics/recurrent_page_test.py): write_recurrent_case FILE. The file is a list of arrays,
// each a line "name count" and f32 numbers.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/recurrent.h"
#include "kernels/select.h"

namespace invar {
namespace {

constexpr int64_t kRows = 76, kTaps = 4;

class Random {
 public:
  float uniform() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }
  std::vector<float> numbers(int64_t count, float scale, float from = 0) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& y : x) y = from + scale * uniform();
    return x;
  }

 private:
  uint64_t state_ = 7;
};

class Case {
 public:
  Case(std::ofstream& file, Recurrence kind, Order order, DType type)
      : file_(file), kind_(kind), kernels_(select_kernels(order, "auto")) {
    layer_ = {.kind = kind,
              .key_heads = kind == Recurrence::channel_delta ? 2 : 1,
              .heads = 2,
              .key_size = 40,
              .value_size = 24,
              .type = type};
    file_ << fmt::format("case {} {} {}\n", kKinds[static_cast<int>(kind)], name_of(order),
                         name_of(type));
  }

  void write() {
    place();
    convolve();
    make_gates();
    recur();
    norm();
  }

 private:
  static constexpr const char* kKinds[] = {"delta", "channel_delta", "state_space"};

  bool is_space() const { return kind_ == Recurrence::state_space; }
  int64_t keys() const { return layer_.key_heads * layer_.key_size; }
  int64_t values() const { return layer_.heads * layer_.value_size; }

  void put(const char* name, const std::vector<float>& x) {
    file_ << name << ' ' << x.size() << '\n';
    file_.write(reinterpret_cast<const char*>(x.data()),
                static_cast<std::streamsize>(x.size() * sizeof(float)));
  }
  std::vector<float> make(const char* name, int64_t count, float scale, float from = 0) {
    std::vector<float> x = random_.numbers(count, scale, from);
    put(name, x);
    return x;
  }
  char* memory(int64_t bytes) {
    memory_.push_back(std::vector<char>(static_cast<size_t>(bytes + 64)));
    char* data = memory_.back().data();
    return data + (64 - reinterpret_cast<uintptr_t>(data) % 64) % 64;
  }
  Cells cells(int64_t bytes) { return {memory(2 * round_up(bytes, 64)), round_up(bytes, 64)}; }

  void place() {
    positions_.resize(kRows), table_of_.resize(kRows), begin_.resize(kRows + 1);
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(begin_.begin(), begin_.end(), 0);
    for (int64_t t = 0; t < kRows; ++t) {
      cell_.push_back(positions_[t] / kChunkSlots);
      nowhere_.push_back(-1);
      state_of_.push_back(positions_[t] / kChunkSlots - 1);
    }
    const int64_t element = size_of(layer_.type);
    layer_.keys = cells(layer_.key_heads * layer_.key_elements() * element);
    layer_.values = cells(layer_.heads * layer_.value_elements() * element);
    layer_.sums = cells(layer_.heads * layer_.sum_elements() * 4);
    layer_.states = cells(layer_.heads * layer_.state_elements() * 4);
    layer_.operands = cells(layer_.heads * layer_.state_elements() * 2);
    places_ = {kRows, positions_.data(), table_of_.data(), tables_, begin_.data(), cell_.data()};
  }

  // Mamba 2 has x, B, C in this order, and a bias.
  void convolve() {
    const int64_t width = 2 * keys() + values(), padded = round_up(width, kLeafPad);
    const auto x = make("x", kRows * width, 1), weight = make("conv", kTaps * width, 0.8f);
    const auto bias = make("conv_bias", is_space() ? width : 0, 0.5f);
    mixed_.resize(static_cast<size_t>(kRows * padded));
    stride_ = padded;
    const ShortConvParams p{.x = x.data(),
                            .x_stride = width,
                            .factor = nullptr,
                            .factor_stride = 0,
                            .places = places_,
                            .channels = width,
                            .taps = kTaps,
                            .weight = weight.data(),
                            .bias = is_space() ? bias.data() : nullptr,
                            .silu = true,
                            .gate = nullptr,
                            .gate_stride = 0,
                            .inputs = cells(kChunkSlots * width * 4),
                            .before = cells(kTaps * width * 4),
                            .type = layer_.type,
                            .before_of = nowhere_.data(),
                            .next_state = nowhere_.data(),
                            .out = {mixed_.data(), DType::f32, padded},
                            .non_finite = flags_};
    kernels_.short_conv(p, {});
  }

  void make_gates() {
    const int64_t heads = layer_.heads, width = heads * layer_.channels();
    const auto a = make("a", kRows * width, 2, -3), z = make("z", kRows * heads, 3);
    const auto log_rate = make("a_log", heads, 0.5f, 0.5f), bias = make("dt_bias", width, 0.5f);
    decays_.resize(static_cast<size_t>(kRows * width)), factors_.resize(kRows * heads);
    const RecurrentGatesParams p{.kind = kind_,
                                 .a = a.data(),
                                 .a_stride = width,
                                 .z = z.data(),
                                 .z_stride = heads,
                                 .log_rate = log_rate.data(),
                                 .bias = bias.data(),
                                 .rows = kRows,
                                 .heads = heads,
                                 .channels = layer_.channels(),
                                 .doubles = kind_ == Recurrence::delta,
                                 .least = 0.01f,
                                 .most = 0.3f,
                                 .decays = decays_.data(),
                                 .factors = factors_.data()};
    kernels_.recurrent_gates(p, {});
    put("decays", decays_);
    put("factors", factors_);
  }

  void recur() {
    const int64_t bytes = kRows * layer_.key_heads * layer_.padded_key() * size_of(layer_.type);
    char *q = memory(bytes), *k = memory(bytes);
    const float* mixed = mixed_.data();
    const double size = layer_.key_size;
    const RecurrentKeysParams key_params{.queries = mixed + (is_space() ? values() + keys() : 0),
                                         .keys = mixed + (is_space() ? values() : keys()),
                                         .stride = stride_,
                                         .normalises = !is_space(),
                                         .eps = 1e-6f,
                                         .scale = static_cast<float>(1 / std::sqrt(size)),
                                         .layer = layer_,
                                         .places = places_,
                                         .q = q,
                                         .k = k,
                                         .non_finite = flags_};
    kernels_.recurrent_keys(key_params, {});
    const auto skips = make("skips", is_space() ? layer_.heads : 0, 1);
    const int32_t sequence[] = {0, kRows};
    std::vector<int32_t> next(kRows, 0);
    out_.resize(static_cast<size_t>(kRows * values()));
    const RecurrenceParams p{.layer = layer_,
                             .places = places_,
                             .q = q,
                             .k = k,
                             .v = mixed + (is_space() ? 0 : 2 * keys()),
                             .v_stride = stride_,
                             .decays = decays_.data(),
                             .factors = factors_.data(),
                             .skips = is_space() ? skips.data() : nullptr,
                             .sequence_begin = sequence,
                             .sequences = 1,
                             .state_of = state_of_.data(),
                             .next_state = next.data(),
                             .out = out_.data(),
                             .out_stride = values(),
                             .non_finite = flags_,
                             .matmul = kernels_.matmul};
    kernels_.recurrence(p, {});
    put("o", out_);
  }

  void norm() {
    const auto gate = make("gate", kRows * values(), 3);
    const auto weight = make("weight", is_space() ? values() : layer_.value_size, 0.5f, 1);
    std::vector<float> y(static_cast<size_t>(kRows * round_up(values(), kLeafPad)));
    const GatedNormParams p{.x = out_.data(),
                            .x_stride = values(),
                            .gate = gate.data(),
                            .gate_stride = values(),
                            .weight = weight.data(),
                            .own_weights = false,
                            .is_sigmoid = kind_ == Recurrence::channel_delta,
                            .gate_first = is_space(),
                            .eps = 1e-5f,
                            .rows = kRows,
                            .groups = is_space() ? 1 : layer_.heads,
                            .width = is_space() ? values() : layer_.value_size,
                            .out = {y.data(), DType::f32, round_up(values(), kLeafPad)}};
    kernels_.gated_norm(p, {});
    put("y", y);
  }

  std::ofstream& file_;
  Recurrence kind_;
  Kernels kernels_;
  RecurrentLayer layer_;
  Random random_;
  std::vector<std::vector<char>> memory_;
  std::vector<int32_t> positions_, table_of_, begin_, cell_, state_of_, nowhere_;
  const int32_t table_[2] = {0, 1}, *const tables_[1] = {table_};
  RowPlaces places_;
  std::vector<float> mixed_, decays_, factors_, out_;
  int64_t stride_ = 0;
  bool flags_[kRows] = {};
};

}  // namespace
}  // namespace invar

int main(int argc, char** argv) {
  using namespace invar;
  if (argc != 2) return 2;
  const ScopedFlushToZero flush;
  std::ofstream file(argv[1], std::ios::binary);
  for (const Recurrence kind :
       {Recurrence::delta, Recurrence::channel_delta, Recurrence::state_space}) {
    for (const Order order : {Order::portable, Order::hopper, Order::pair})
      Case(file, kind, order, DType::bf16).write();
    Case(file, kind, Order::portable, DType::f32).write();
  }
  return file.good() ? 0 : 1;
}
