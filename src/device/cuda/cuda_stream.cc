#include "device/cuda/cuda_stream.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"

namespace invar {

namespace {

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t graph) : graph_(graph) {
    cuda_check(cudaGraphInstantiate(&executable_, graph, 0), "preparing a recorded step");
  }
  ~CudaGraph() override {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

CudaEvent::CudaEvent(Device& device, Gpu& gpu) : device_(device), gpu_(gpu) {
  gpu_.make_current();
  cuda_check(cudaEventCreate(&event_), "making an event");
}

CudaEvent::~CudaEvent() {
  gpu_.try_to_make_current();
  cudaEventDestroy(event_);
}

void CudaEvent::wait() {
  gpu_.make_current();
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaSuccess) return;
  if (status != cudaErrorNotReady) cuda_check(status, "computing");
  device_.note_wait();
  cuda_check(cudaEventSynchronize(event_), "computing");
}

double CudaEvent::seconds_since(const Event& earlier) const {
  // The step's results are in the stream before the event at its end, which may be a little later.
  cuda_check(cudaEventSynchronize(event_), "computing");
  float milliseconds = 0;
  cuda_check(
      cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_),
      "comparing the times of events");
  return milliseconds * 1e-3;
}

CudaStream::CudaStream(Device& device, Gpu& gpu) : device_(device), gpu_(gpu) {
  gpu_.make_current();
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

CudaStream::CudaStream(Device& device, Gpu& gpu, cudaStream_t stream)
    : device_(device), gpu_(gpu), stream_(stream), is_own_(false) {}

CudaStream::~CudaStream() {
  if (!is_own_) return;
  gpu_.try_to_make_current();
  cudaStreamSynchronize(stream_);  // what it still reads may be released next
  cudaStreamDestroy(stream_);
}

cudaStream_t CudaStream::use() const {
  gpu_.make_current();
  return stream_;
}

void CudaStream::upload(void* to, const void* from, size_t bytes) {
  if (bytes)
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, use()),
               "copying to the GPU");
}

void CudaStream::download(void* to, const void* from, size_t bytes) {
  if (bytes)
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, use()),
               "copying from the GPU");
}

void CudaStream::copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride,
                           size_t width, size_t rows) {
  if (width && rows)
    cuda_check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, width, rows,
                                 cudaMemcpyDeviceToDevice, use()),
               "copying on the GPU");
}

void CudaStream::clear(void* to, size_t bytes) {
  if (bytes) cuda_check(cudaMemsetAsync(to, 0, bytes, use()), "clearing GPU memory");
}

void CudaStream::wait() {
  device_.note_wait();
  cuda_check(cudaStreamSynchronize(use()), "computing");
}

void CudaStream::record(Event& event) {
  cuda_check(cudaEventRecord(static_cast<CudaEvent&>(event).event_, use()), "recording an event");
}

void CudaStream::wait_for(const Event& event) {
  cuda_check(cudaStreamWaitEvent(use(), static_cast<const CudaEvent&>(event).event_, 0),
             "waiting for an event");
}

std::unique_ptr<Graph> CudaStream::record_graph(FunctionRef<void()> work) {
  cuda_check(cudaStreamBeginCapture(use(), cudaStreamCaptureModeThreadLocal), "recording a step");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();  // that the recording ended is no lasting error
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream_, &graph), "recording a step");
  return std::make_unique<CudaGraph>(graph);
}

void CudaStream::launch(Graph& graph) {
  cuda_check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).executable(), use()),
             "launching a recorded step");
}

cudaStream_t stream_of(const Execution& on) {
  CHECK(on.stream, "work for a GPU needs one of its streams");
  return static_cast<const CudaStream*>(on.stream)->use();
}

}  // namespace invar
