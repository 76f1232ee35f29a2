// Streams of a GPU. They have no ties to the runtime's default stream, which nothing here uses.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/gpu.h"

namespace invar {

class CudaEvent final : public Event {
 public:
  CudaEvent(Device& device, Gpu& gpu);
  ~CudaEvent() override;
  void wait() override;
  double seconds_since(const Event& earlier) const override;

 private:
  friend class CudaStream;
  Device& device_;
  Gpu& gpu_;
  cudaEvent_t event_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  CudaStream(Device& device, Gpu& gpu);
  // One of the caller's, who keeps it for as long as this lives.
  CudaStream(Device& device, Gpu& gpu, cudaStream_t stream);
  ~CudaStream() override;

  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t width,
                 size_t rows) override;
  void clear(void* to, size_t bytes) override;
  void wait() override;
  void record(Event& event) override;
  void wait_for(const Event& event) override;
  std::unique_ptr<Graph> record_graph(FunctionRef<void()> work) override;
  void launch(Graph& graph) override;

  // For a launch: the calling thread's current GPU is this stream's afterwards.
  cudaStream_t use() const;
  Gpu& gpu() const { return gpu_; }

 private:
  Device& device_;
  Gpu& gpu_;
  cudaStream_t stream_ = nullptr;
  bool is_own_ = true;
};

// The stream to launch a kernel on: `kernel<<<blocks, threads, shared, stream_of(on)>>>(...)`.
cudaStream_t stream_of(const Execution& on);

}  // namespace invar
