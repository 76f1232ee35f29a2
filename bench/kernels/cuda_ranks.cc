// The ranks' sums of partial sums on all GPUs of this machine, beside NCCL's, as a Markdown table
// for 4096 and 5120 floats a token. With one GPU two ranks share it.
// Usage: cuda_ranks [TOKENS ...], 1 to 8192 by default. NCCL is the library that INVAR_NCCL names,
// or libnccl.so.2.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "collectives/peer_group.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda_device.h"
#include "nccl.h"

namespace invar::bench {
namespace {

constexpr int kRounds = 15;
constexpr int64_t kMostTokens = 8192, kMostHidden = 5120;
constexpr int64_t kOneShot = 8 << 20;  // what is pushed to be compared, though it be chosen no more

float value_of(int rank, int64_t i) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(rank) * 39571931u;
  h = (h ^ h >> 15) * 2246822519u;
  h ^= h >> 13;
  return (static_cast<float>(h & 0xffffff) - 0x800000) *
         (1.0f / static_cast<float>(1 << (10 + h % 7)));
}

float tree(int first, int size, int64_t i) {
  if (size == 1) return value_of(first, i);
  return tree(first, size / 2, i) + tree(first + size / 2, size / 2, i);
}

struct Line {
  int64_t tokens, hidden;
  // Microseconds; 0: none. gathered: by NCCL, and added here.
  double push = 0, shares = 0, chosen = 0, gathered = 0, nccl = 0, nccl_bf16 = 0;
  int64_t wrong = 0;  // words
};

// All ranks share this.
struct Case {
  int size = 2;
  Nccl nccl = {};
  Nccl::Id id = {};
  std::vector<std::unique_ptr<Group>> push, shares, chosen, gathered;  // on the host
  std::vector<Line> lines;
};

class Rank {
 public:
  Rank(Case& all, int rank, int gpus)
      : all_(all),
        rank_(rank),
        gpu_(make_cuda_device(rank % gpus)),
        stream_(gpu_->make_stream()),
        data_(*gpu_, kMostTokens * kMostHidden, "a bench"),
        values_(kMostTokens * kMostHidden),
        has_own_gpu_(gpus >= all.size),
        push_(make_peer_group(*all.push[rank], {.one_shot_bytes = kOneShot})),
        shares_(make_peer_group(*all.shares[rank], {.one_shot_bytes = 0})),
        chosen_(make_peer_group(*all.chosen[rank])),
        gathered_(make_peer_group(*all.gathered[rank], {.way = PeerOptions::Way::nccl})) {
    for (int64_t i = 0; i < std::ssize(values_); ++i) values_[i] = value_of(rank, i);
    if (all.nccl.is_there() && has_own_gpu_) nccl_ = all.nccl.join(all.size, all.id, rank);
  }
  ~Rank() {
    if (nccl_) all_.nccl.leave(nccl_);
  }

  void measure(Line& line) {
    const int64_t count = line.tokens * line.hidden;
    const auto sum = [&](Group& group) {
      return [&, count] { group.tree_all_reduce(data_.data(), count, on()); };
    };
    line.wrong = wrong_words(sum(*chosen_), count);
    line.chosen = time(sum(*chosen_));
    const int64_t pushed = count * 4 * (all_.size - 1);
    if (pushed <= kOneShot && has_own_gpu_) line.push = time(sum(*push_));
    if (has_own_gpu_) line.shares = time(sum(*shares_));
    if (!nccl_) return;
    line.wrong += wrong_words(sum(*gathered_), count);
    line.gathered = time(sum(*gathered_));
    const auto nccl = [&](Nccl::Type type) {
      return [=, this] { all_.nccl.all_reduce(nccl_, data_.data(), count, type, stream_of(on())); };
    };
    line.nccl = time(nccl(Nccl::Type::f32));
    line.nccl_bf16 = time(nccl(Nccl::Type::bf16));
  }

 private:
  Execution on() const { return {gpu_.get(), stream_.get()}; }

  template <typename Work>
  int64_t wrong_words(const Work& work, int64_t count) {
    gpu_->upload(data_.data(), values_.data(), count * sizeof(float));
    all_.chosen[rank_]->barrier();
    work();
    stream_->wait();
    std::vector<float> found(count);
    gpu_->download(found.data(), data_.data(), count * sizeof(float));
    if (rank_ > 0) return 0;
    const ScopedFlushToZero flush;
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i)
      wrong += std::bit_cast<uint32_t>(found[i]) != std::bit_cast<uint32_t>(tree(0, all_.size, i));
    return wrong;
  }

  // Microseconds of a call: graphs of 20, or calls one by one where the host meets in them.
  template <typename Work>
  double time(const Work& work) {
    constexpr int kCalls = 20;
    gpu_->upload(data_.data(), values_.data(), 4096);
    work();
    stream_->wait();
    std::unique_ptr<Graph> graph;
    const auto calls = [&] {
      for (int i = 0; i < kCalls; ++i) work();
    };
    if (has_own_gpu_) graph = stream_->record_graph(calls);
    std::vector<double> us;
    const auto begin = gpu_->make_event(), end = gpu_->make_event();
    for (int round = 0; round < kRounds; ++round) {
      all_.chosen[rank_]->barrier();
      const auto once = [&] { graph ? stream_->launch(*graph) : calls(); };
      if (graph) once();  // so that the ranks have met before the clock starts
      stream_->record(*begin);
      once();
      stream_->record(*end);
      end->wait();
      us.push_back(end->seconds_since(*begin) * 1e6 / kCalls);
    }
    std::ranges::sort(us);
    return us[us.size() / 2];
  }

  Case& all_;
  const int rank_;
  const std::unique_ptr<Device> gpu_;
  const std::unique_ptr<Stream> stream_;
  DeviceArray<float> data_;
  std::vector<float> values_;
  const bool has_own_gpu_;
  std::unique_ptr<Group> push_, shares_, chosen_, gathered_;
  void* nccl_ = nullptr;
};

void print(const Line& line) {
  const auto us = [](double value) { return value > 0 ? fmt::format("{:.1f}", value) : "-"; };
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", line.hidden, line.tokens,
             us(line.push), us(line.shares), us(line.chosen), us(line.gathered), us(line.nccl),
             us(line.nccl_bf16),
             line.nccl > 0 ? fmt::format("{:.2f}", line.chosen / line.nccl) : "-", line.wrong);
  std::fflush(stdout);
}

std::vector<Line> lines_of(std::vector<int64_t> tokens) {
  if (tokens.empty()) tokens = {1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<Line> lines;
  for (const int64_t hidden : {4096, 5120})
    for (const int64_t rows : tokens) {
      if (rows < 1 || rows > kMostTokens)
        fail("expected 1 to {} tokens, found {}", kMostTokens, rows);
      lines.push_back({rows, hidden});
    }
  return lines;
}

// As one rank.
void measure(Case& all, int number, int gpus) {
  Rank rank(all, number, gpus);
  for (const Line& line : all.lines) {
    Line measured = line;
    rank.measure(measured);
    if (number == 0) print(measured);
  }
}

void bench_ranks(const std::vector<int64_t>& tokens) {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // kernels wait for each other
  const int gpus = cuda_device_count();
  if (gpus == 0) fail("expected a GPU, found none");
  Case all{.size =
               static_cast<int>(std::clamp(std::bit_floor(static_cast<unsigned>(gpus)), 2u, 8u))};
  all.lines = lines_of(tokens);
  for (auto* groups : {&all.push, &all.shares, &all.chosen, &all.gathered})
    *groups = make_inproc_groups(all.size);
  if (all.nccl.is_there()) all.id = all.nccl.make_id();
  fmt::print("{}, {} ranks on {} GPUs, NCCL {}\n\n", describe_cuda_device(0), all.size,
             std::min(gpus, all.size), all.nccl.version());
  fmt::print(
      "| floats a token | tokens | one shot, us | two shots, us | chosen, us | gathered by NCCL, "
      "us | NCCL f32, us | NCCL bf16, us | x NCCL f32 | words that differ "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  std::vector<std::jthread> threads;
  for (int r = 0; r < all.size; ++r)
    threads.emplace_back([&all, r, gpus] {
      try {
        measure(all, r, gpus);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", r, error.what());
        std::_Exit(1);  // the others wait for it
      }
    });
}

}  // namespace
}  // namespace invar::bench

int main(int argc, char** argv) {
  try {
    std::vector<int64_t> tokens;
    for (int i = 1; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
    invar::bench::bench_ranks(tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
