// Times of work on a GPU, and cuBLAS to compare with. Work is captured as CUDA graphs, so that no
// launch is measured; those that are compared take turns in a shuffled order, and the median
// counts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda_power.h"
#include "device/cuda/cuda_stream.h"

namespace invar::bench {

class GpuTimer {
 public:
  explicit GpuTimer(Device& gpu);
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;

  Execution on() const { return {&gpu_, owner_.get()}; }
  cudaStream_t stream() const { return stream_; }
  // Adds what is to be compared: `work(i)` launches call i on the stream.
  void add(std::string name, const std::function<void(int)>& work, int calls);
  // Microseconds of a call of each, the median of so many rounds; nothing is left to compare.
  std::vector<std::pair<std::string, double>> run(int rounds);
  // The same of one after the other, each for so long that the GPU's power limit sets its clock;
  // those that are 1.2 x as slow as the fastest in short runs are left out.
  struct Lasting {
    std::string name;
    double us;
    GpuPower::Draw draw;
  };
  std::vector<Lasting> run_lasting(double seconds);

 private:
  struct Entry {
    std::string name;
    cudaGraphExec_t graph;
    int calls;
    std::vector<double> us;
  };
  double once(const Entry& entry);
  Lasting lasting(const Entry& entry, double seconds);

  Device& gpu_;
  std::unique_ptr<Stream> owner_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  std::vector<Entry> entries_;
  GpuPower power_;
};

// The operation behind cuBLAS's product of gate and up: out[rows][width] = silu(gate) * up, bf16,
// from [rows][gate, up], both of `width`.
void gate(const void* products, void* out, int64_t rows, int64_t width, cudaStream_t stream);

}  // namespace invar::bench
