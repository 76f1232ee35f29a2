#include "cuda_timer.h"

#include <algorithm>
#include <numeric>

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

}  // namespace invar::bench
