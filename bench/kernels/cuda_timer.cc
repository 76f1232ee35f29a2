#include "cuda_timer.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/timer.h"
#include "device/cuda/cuda_check.h"

namespace invar::bench {

GpuTimer::GpuTimer(Device& gpu) : gpu_(gpu), owner_(gpu.make_stream()), stream_(stream_of(on())) {
  cuda_check(cudaEventCreate(&begin_), "making an event");
  cuda_check(cudaEventCreate(&end_), "making an event");
}

GpuTimer::~GpuTimer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

void GpuTimer::add(std::string name, const std::function<void(int)>& work, int calls) {
  work(0);  // what is done once is done before the capture
  cuda_check(cudaStreamSynchronize(stream_), "running what is to be measured");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < calls; ++i) work(i);
  cuda_check(cudaStreamEndCapture(stream_, &graph), "capturing");
  cuda_check(cudaGraphInstantiate(&executable, graph, 0), "capturing");
  cuda_check(cudaGraphDestroy(graph), "capturing");
  entries_.push_back({std::move(name), executable, calls, {}});
}

double GpuTimer::once(const Entry& entry) {
  cuda_check(cudaEventRecord(begin_, stream_), "measuring");
  cuda_check(cudaGraphLaunch(entry.graph, stream_), "measuring");
  cuda_check(cudaEventRecord(end_, stream_), "measuring");
  cuda_check(cudaEventSynchronize(end_), "measuring");
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "measuring");
  return ms * 1e3 / entry.calls;
}

std::vector<std::pair<std::string, double>> GpuTimer::run(int rounds) {
  std::vector<size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  uint32_t random = 12345;
  for (const Entry& entry : entries_) once(entry);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = order.size() - 1; i > 0; --i) {
      random = random * 1664525u + 1013904223u;
      std::swap(order[i], order[(random >> 8) % (i + 1)]);
    }
    for (const size_t i : order) entries_[i].us.push_back(once(entries_[i]));
  }
  std::vector<std::pair<std::string, double>> medians;
  for (Entry& entry : entries_) {
    std::ranges::sort(entry.us);
    medians.emplace_back(entry.name, entry.us[entry.us.size() / 2]);
    cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  return medians;
}

GpuTimer::Lasting GpuTimer::lasting(const Entry& entry, double seconds) {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(5);
  double sum = 0;
  int graphs = 0;
  const auto run = [&](double most) {
    for (const Timer timer; timer.seconds() < most; ++graphs) {
      cuda_check(cudaEventRecord(begin_, stream_), "measuring");
      cuda_check(cudaGraphLaunch(entry.graph, stream_), "measuring");
      cuda_check(cudaEventRecord(end_, stream_), "measuring");
      while (cudaEventQuery(end_) == cudaErrorNotReady) {
        std::this_thread::sleep_for(kBetweenLooks);
        power_.look();
      }
      float ms = 0;
      cuda_check(cudaEventElapsedTime(&ms, begin_, end_), "measuring");
      sum += ms * 1e3 / entry.calls;
    }
  };
  run(seconds / 2);  // until the clock has settled
  sum = graphs = 0;
  power_.begin();
  const Timer timer;
  run(seconds);
  return {entry.name, sum / graphs, power_.end(timer.seconds())};
}

std::vector<GpuTimer::Lasting> GpuTimer::run_lasting(double seconds) {
  double best = 0;
  for (Entry& entry : entries_) {
    once(entry);
    entry.us = {once(entry)};
    if (best == 0 || entry.us[0] < best) best = entry.us[0];
  }
  std::vector<Lasting> found;
  for (const Entry& entry : entries_) {
    if (entry.us[0] <= 1.2 * best) found.push_back(lasting(entry, seconds));
    cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  return found;
}

}  // namespace invar::bench
