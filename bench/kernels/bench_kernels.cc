// Speed of the matrix products of one model shape, as shares of what the machine can do at most,
// measured in the same run: reading the weights once, and the products of the instruction set.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/timer.h"
#include "device/device.h"
#include "kernels/peaks.h"
#include "kernels/select.h"

namespace invar {
namespace {

struct Product {
  const char* name;
  int64_t n, k;
  int split_k;
  bool gated;
};

// The preset bench-473m: hidden 1024, 16 and 8 heads of 128, ffn 3072, vocabulary 32000.
constexpr Product kProducts[] = {{"qkv", 4096, 1024, 1, false},
                                 {"o", 1024, 2048, 8, false},
                                 {"gate_up", 3072, 1024, 1, true},
                                 {"down", 1024, 3072, 8, false},
                                 {"lm_head", 32000, 1024, 1, false}};

struct Options {
  int threads = 2;
  std::vector<std::string> sets;
  std::vector<std::string> orders = {"portable"};
  std::vector<std::string> products;
  std::string type = "bf16";
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64, 512};
  double seconds = 0.2;
  int64_t mebibytes = 1024;
};

DType type_named(const std::string& name) {
  for (const StorageType& type : kStorageTypes)
    if (name == type.name && type.element == DType::bf16) return type.type;
  fail_usage("expected a type of weights whose elements are multiplied as bf16, found \"{}\"",
             name);
}

// Ordinary bf16 values between 2^-7 and 1; as scales of blocks, which are f16 numbers, from 1 to 2.
void fill(ThreadPool& pool, bf16_t* data, int64_t count) {
  pool.run([&](Part part) {
    const auto [begin, end] = part.of(count, 4);
    uint64_t state = begin + 1;
    for (int64_t i = begin; i < end; i += 4) {
      state = state * 6364136223846793005 + 1442695040888963407;
      const uint64_t bits = ((state ^ state >> 29) & 0x83ff83ff83ff83ff) | 0x3c003c003c003c00;
      std::memcpy(data + i, &bits, std::min<int64_t>(8, 2 * (end - i)));
    }
  });
}

class Bench {
 public:
  Bench(const Options& options)
      : options_(options),
        pool_(options.threads),
        device_(make_host_device()),
        weights_(*device_, options.mebibytes << 20, "the weights") {
    fill(pool_, reinterpret_cast<bf16_t*>(weights_.data()), options.mebibytes << 19);
  }

  void run() {
    const double bandwidth =
        measure_read_bandwidth(pool_, {weights_.data(), static_cast<size_t>(weights_.size())});
    std::printf("%d threads, read bandwidth %.1f GB/s\n", pool_.size(), bandwidth / 1e9);
    for (const std::string& set : options_.sets) {
      select_kernels(Order::portable, set);  // refuses sets that are not there
      const double peak = measure_product_peak(pool_, set);
      std::printf("%s: product peak %.0f GFLOP/s\n", set.c_str(), peak / 1e9);
      std::printf("%-8s %-8s %5s %9s %9s %8s %6s %9s %6s\n", "order", "product", "rows", "best ms",
                  "med. ms", "GB/s", "share", "GFLOP/s", "share");
      for (const Product& p : kProducts) {
        if (!options_.products.empty() &&
            std::ranges::find(options_.products, p.name) == options_.products.end())
          continue;
        for (const int64_t rows : options_.rows)
          for (const std::string& order : options_.orders)
            measure(order, set, p, rows, bandwidth, peak);
      }
    }
  }

 private:
  void measure(const std::string& order, const std::string& set, const Product& p, int64_t rows,
               double bandwidth, double peak) {
    const Kernels kernels =
        select_kernels(order == "hopper" ? Order::hopper : Order::portable, set);
    const int64_t x_stride = activation_stride(p.k), out_stride = activation_stride(p.n);
    DeviceArray<bf16_t> x(*device_, rows * x_stride, "activations");
    DeviceArray<bf16_t> out(*device_, rows * out_stride, "activations");
    DeviceArray<float> y(*device_, rows * p.n, "activations");
    fill(pool_, x.data(), rows * x_stride);
    Matrix w{.type = type_named(options_.type), .n = p.n, .k = p.k, .count = p.gated ? 2 : 1};
    const int64_t bytes = w.bytes();
    const int64_t copies = static_cast<int64_t>(weights_.size()) / bytes;

    std::vector<double> times;
    int64_t copy = 0;
    // Long runs of other programs on the same cores are seen as outliers; at least 5 calls.
    for (const Timer all; all.seconds() < options_.seconds || times.size() < 5;) {
      w.data = weights_.data() + copy++ % copies * bytes;
      const Timer timer;
      pool_.run([&](Part part) {
        const Execution on{.share = part};
        if (p.gated)
          kernels.gated_matmul({.x = {x.data(), DType::bf16, x_stride},
                                .gate_up = w,
                                .rows = rows,
                                .gate_bias = nullptr,
                                .up_bias = nullptr,
                                .out = {out.data(), DType::bf16, out_stride}},
                               on);
        else
          kernels.matmul({.x = {x.data(), DType::bf16, x_stride},
                          .w = w,
                          .rows = rows,
                          .split_k = p.split_k,
                          .bias = nullptr,
                          .accumulate = p.split_k > 1,
                          .y = y.data(),
                          .y_stride = p.n},
                         on);
      });
      times.push_back(timer.seconds());
    }
    std::ranges::sort(times);
    const double best = times.front(), median = times[times.size() / 2];
    const double bytes_per_s = bytes / median;
    const double flops = static_cast<double>(2 * rows * w.elements()) / median;
    std::printf("%-8s %-8s %5ld %9.4f %9.4f %8.1f %5.0f%% %9.0f %5.0f%%\n", order.c_str(), p.name,
                rows, best * 1e3, median * 1e3, bytes_per_s / 1e9, 100 * bytes_per_s / bandwidth,
                flops / 1e9, peak ? 100 * flops / peak : 0);
    std::fflush(stdout);
  }

  Options options_;
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  DeviceArray<std::byte> weights_;
};

}  // namespace
}  // namespace invar

int main(int argc, char** argv) {
  invar::Options options;
  CLI::App app("Speed of the matrix products, against the limits of this machine");
  app.add_option("--threads", options.threads, "threads, the caller among them");
  app.add_option("--set", options.sets, "instruction sets; the fastest by default");
  app.add_option("--order", options.orders, "portable, hopper")
      ->check(CLI::IsMember({"portable", "hopper"}));
  app.add_option("--product", options.products, "qkv, o, gate_up, down, lm_head; all by default");
  app.add_option("--type", options.type, "type of the weights: bf16, or one with blocks");
  app.add_option("--rows", options.rows, "row counts");
  app.add_option("--seconds", options.seconds, "time for each line");
  app.add_option("--mebibytes", options.mebibytes, "size of all weights");
  CLI11_PARSE(app, argc, argv);
  if (options.sets.empty())
    options.sets = {invar::select_kernels(invar::Order::portable, "auto").name};
  invar::Bench(options).run();
}
