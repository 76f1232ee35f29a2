// The bounds of a matrix product on AMX: loops of tile products alone, by where their operands lie,
// as shares of the peak from registers. Nothing else of a product is in them: no sums of runs, no
// biases, no rounding. docs/benchmarks.md says what follows from the figures.
#include <immintrin.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/timer.h"
#include "device/device.h"
#include "kernels/cpu/amx_strip_inl.h"
#include "kernels/peaks.h"
#include "kernels/select.h"

namespace invar {
namespace {

using namespace cpu;

constexpr int64_t kLine = 64;

// Strips of R tiles of rows meet pairs of panels of weights; leaves of 32 elements.
struct Loop {
  const char* name;
  int tiles;             // R: 2, or 3
  int64_t rows, leaves;  // of all strips
  int64_t panels;        // gone through in turn
  bool past_l1 = false;  // rows are loaded with the hint that they are not needed again
  bool stores = false;   // the chains of a strip and a pair
  bool is_awake = true;  // one 512-bit addition a leaf
  bool zeros = false;    // every operand is 0
};

constexpr Loop kLoops[] = {
    {"2 x 2 tiles, all in L1", 2, 32, 4, 2},
    {"2 x 2 tiles, all in L1, of zeros", 2, 32, 4, 2, false, false, true, true},
    {"3 x 2 tiles, all in L1", 3, 48, 4, 2},
    {"2 x 2, rows from L2, 32 KB of weights", 2, 512, 16, 2, false, true},
    {"2 x 2, rows from L2 past L1, 32 KB of weights", 2, 512, 16, 2, true, true},
    {"the same, 64 KB of weights", 2, 512, 32, 2, true, true},
    {"the same, 32 KB at a time from memory", 2, 512, 16, 4096, true, true},
    {"2 x 2, rows and weights from L2", 2, 512, 32, 2},
    {"3 x 2, rows and weights from L2", 3, 480, 32, 2},
    {"3 x 2, from L2, chains stored", 3, 480, 32, 2, false, true},
    {"3 x 2, from L2, chains stored, asleep", 3, 480, 32, 2, false, true, false},
    {"3 x 2, rows from L2, weights from memory", 3, 480, 32, 4096, false, true},
    {"2 x 2, 32 rows in L1, weights from memory", 2, 32, 8, 16384, false, true},
};

template <int R, RowsAre kRows>
void multiply(const Loop& loop, const char* x, int64_t stride, const char* w, float* chains) {
  const char* other = w + loop.leaves * kTileBytes;
  for (int64_t left = loop.leaves; left > 0; --left) {
    if constexpr (R == 2) {
      add_leaf<2, 2, kRows>(x, x + 16 * stride, stride, w, other);
    } else {
      tile_load<6>(w, kLine);
      load_rows<7, kRows>(x, stride);
      tile_dot<0, 7, 6>();
      load_rows<7, kRows>(x + 16 * stride, stride);
      tile_dot<1, 7, 6>();
      load_rows<7, kRows>(x + 32 * stride, stride);
      tile_dot<2, 7, 6>();
      tile_load<6>(other, kLine);
      tile_dot<5, 7, 6>();
      load_rows<7, kRows>(x + 16 * stride, stride);
      tile_dot<4, 7, 6>();
      load_rows<7, kRows>(x, stride);
      tile_dot<3, 7, 6>();
    }
    x += kLine, w += kTileBytes, other += kTileBytes;
    if (loop.is_awake)
      __asm__ volatile("vaddps %%zmm31, %%zmm31, %%zmm31" ::);  // not a register of x86-64-v3
  }
  if (!loop.stores) return;
  tile_store<0>(chains, kLine);
  tile_store<1>(chains + 256, kLine);
  tile_store<2>(chains + 512, kLine);
  tile_store<3>(chains + 768, kLine);
  if constexpr (R == 3) tile_store<4>(chains + 1024, kLine), tile_store<5>(chains + 1280, kLine);
}

class Bench {
 public:
  explicit Bench(int threads)
      : pool_(threads),
        device_(make_host_device()),
        operands_(*device_, threads * kShare, "the operands"),
        zeros_(*device_, 1 << 20, "zeros") {
    // Ordinary numbers: on zeros the clock is higher than any model sees.
    pool_.run([&](Part part) {
      uint32_t state = static_cast<uint32_t>(part.index) + 1;
      auto* x = reinterpret_cast<uint16_t*>(operands_.data() + part.index * kShare);
      for (int64_t i = 0; i < kShare / 2; ++i) {
        state = state * 1664525 + 1013904223;
        x[i] = static_cast<uint16_t>((state >> 16 & 0x81ff) | 0x3e00);
      }
    });
  }

  void run(double seconds) {
    std::printf("%d threads; the loops' shares of the peak from registers, medians\n",
                pool_.size());
    for (const Loop& loop : kLoops) {
      std::vector<double> shares;
      for (const Timer all; all.seconds() < seconds || shares.size() < 5;) {
        const double peak = measure_product_peak(pool_, "amx");
        shares.push_back(rate(loop) / peak);
      }
      std::ranges::sort(shares);
      std::printf("  %-44s %5.1f %%\n", loop.name, 100 * shares[shares.size() / 2]);
      std::fflush(stdout);
    }
    std::printf("the first thread's clock meanwhile, all threads at work\n");
    print_clock("on operands from L1", operands_.data());
    print_clock("on zeros", zeros_.data());
  }

 private:
  // Floating-point operations per second of about 20 ms.
  double rate(const Loop& loop) {
    const int64_t per_pair = loop.rows * 32 * loop.leaves * 32 * 2;
    const int64_t pairs = std::max<int64_t>(40'000'000'000 / per_pair, loop.panels / 2);
    const Timer timer;
    pool_.run([&](Part part) { multiply_all(loop, part.index, pairs); });
    return static_cast<double>(pool_.size() * pairs * per_pair) / timer.seconds();
  }

  // A chain of 24 dependent multiplications of integers takes 72 cycles, longer than the 64 of the
  // four products of tiles beside it: the time of both tells the clock.
  void print_clock(const char* name, const std::byte* operands) {
    constexpr int64_t kTurns = 1 << 20;
    std::vector<double> clocks;
    for (int round = 0; round < 5; ++round) {
      const Timer timer;
      pool_.run([&](Part) { multiply_beside_chain(operands, kTurns); });
      clocks.push_back(72 * kTurns / timer.seconds() / 1e9);
    }
    std::ranges::sort(clocks);
    std::printf("  %-44s %5.2f GHz\n", name, clocks[clocks.size() / 2]);
  }

  static void multiply_beside_chain(const std::byte* operands, int64_t turns) {
    configure_tiles();
    int64_t x = 3;
    for (int64_t i = 0; i < turns; ++i) {
      const std::byte* from = operands + i % 8 * 4 * kTileBytes;
      add_leaf<2, 2, RowsAre::read_again>(from, from + 3 * kTileBytes, kLine, from + kTileBytes,
                                          from + 2 * kTileBytes);
#pragma GCC unroll 24
      for (int k = 0; k < 24; ++k) __asm__ volatile("imul %0, %0" : "+r"(x));
    }
    tile_release();
  }

  void multiply_all(const Loop& loop, int index, int64_t pairs) {
    configure_tiles();
    const std::byte* operands = loop.zeros ? zeros_.data() : operands_.data() + index * kShare;
    const char* x = reinterpret_cast<const char*>(operands);
    const char* weights = x + (loop.zeros ? kLine : kRowBytes);
    // An odd number of lines, as an activation's rows have: rows of a tile lie in different sets.
    const int64_t stride = (loop.leaves | 1) * kLine;
    const auto strip = loop.tiles == 3 ? multiply<3, RowsAre::read_again>
                       : loop.past_l1  ? multiply<2, RowsAre::past_l1>
                                       : multiply<2, RowsAre::read_again>;
    alignas(64) float chains[6 * 256];
    for (int64_t p = 0; p < pairs; ++p) {
      const char* w = weights + p % (loop.panels / 2) * 2 * loop.leaves * kTileBytes;
      for (int64_t row = 0; row < loop.rows; row += 16 * loop.tiles)
        strip(loop, x + row * stride, stride, w, chains);
    }
    tile_release();
  }

  static constexpr int64_t kRowBytes = 2 << 20, kShare = kRowBytes + (128 << 20);

  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  DeviceArray<std::byte> operands_, zeros_;
};

}  // namespace
}  // namespace invar

int main(int argc, char** argv) {
  int threads = 2;
  double seconds = 1;
  CLI::App app("What bounds matrix products on AMX: tile loops by where their operands lie");
  app.add_option("--threads", threads, "threads, the caller among them");
  app.add_option("--seconds", seconds, "time for each line");
  CLI11_PARSE(app, argc, argv);
  invar::select_kernels(invar::Order::portable, "amx");  // refuses processors without
  invar::Bench(threads).run(seconds);
}
