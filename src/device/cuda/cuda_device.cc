#include "device/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/vacatable_memory.h"
#include "device/vacatable.h"

namespace invar {

namespace {

std::string version(int number) {  // 13000 is 13.0
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

class CudaDevice final : public Device, public VacatesMemory {
 public:
  explicit CudaDevice(int ordinal) : gpu_(ordinal), vacatable_(ordinal) {
    gpu_.make_current();
    cuda_check(cudaStreamCreateWithFlags(&loading_, cudaStreamNonBlocking), "making a stream");
  }
  ~CudaDevice() override {
    gpu_.try_to_make_current();
    cudaStreamDestroy(loading_);
  }

  void* allocate(size_t bytes, const char* what) override {
    gpu_.make_current();
    void* address = nullptr;
    const cudaError_t status = cudaMalloc(&address, bytes ? bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not a lasting error
      fail_of_memory(bytes, what);
    }
    cuda_check(status, "allocating GPU memory");
    clear(address, bytes);
    return address;
  }

  void release(void* address, size_t) override {
    gpu_.try_to_make_current();
    cudaFree(address);  // at the end of a failed device nothing more can be said
  }

  void* allocate_vacatable(size_t bytes, const char* what) override {
    if (!VacatableMemory::is_large(bytes)) return allocate(bytes, what);
    gpu_.make_current();
    void* address = vacatable_.allocate(bytes);
    if (!address) fail_of_memory(bytes, what);
    clear(address, bytes);
    return address;
  }

  void release_vacatable(void* address, size_t bytes) override {
    if (!VacatableMemory::is_large(bytes)) return release(address, bytes);
    gpu_.try_to_make_current();
    cudaDeviceSynchronize();  // as cudaFree does: somebody may read it still
    vacatable_.release(address);
  }

  void vacate(void* address, size_t bytes) override {
    if (!VacatableMemory::is_large(bytes)) return;
    gpu_.make_current();
    cuda_check(cudaDeviceSynchronize(), "giving GPU memory back");
    vacatable_.vacate(address);
  }

  void occupy(void* address, size_t bytes, const char* what) override {
    gpu_.make_current();
    if (VacatableMemory::is_large(bytes) && !vacatable_.occupy(address))
      fail_of_memory(bytes, what);
    clear(address, bytes);
  }

  void* allocate_pinned(size_t bytes, const char* what) override {
    gpu_.make_current();
    void* address = nullptr;
    const cudaError_t status = cudaHostAlloc(&address, bytes ? bytes : 1, cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail("not enough pinned host memory for {}: {} MiB are needed", what, bytes >> 20);
    }
    cuda_check(status, "allocating pinned memory");
    std::memset(address, 0, bytes);
    return address;
  }

  void release_pinned(void* address, size_t) override {
    gpu_.try_to_make_current();
    cudaFreeHost(address);
  }

  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CudaStream>(*this, gpu_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(*this, gpu_); }

  void upload(void* to, const void* from, size_t bytes) override {
    copy(to, from, bytes, "copying to the GPU");
  }
  void download(void* to, const void* from, size_t bytes) override {
    copy(to, from, bytes, "copying from the GPU");
  }
  bool is_host() const override { return false; }
  std::unique_ptr<Stream> borrow(cudaStream_t stream) {
    return std::make_unique<CudaStream>(*this, gpu_, stream);
  }

  size_t available_bytes() const override {
    gpu_.make_current();
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
    return free;
  }

 private:
  [[noreturn]] void fail_of_memory(size_t bytes, const char* what) const {
    fail("not enough GPU memory for {}: {} MiB are needed, {} MiB are available", what, bytes >> 20,
         available_bytes() >> 20);
  }

  // Other streams use it next.
  void clear(void* address, size_t bytes) {
    cuda_check(cudaMemsetAsync(address, 0, bytes, loading_), "clearing GPU memory");
    cuda_check(cudaStreamSynchronize(loading_), "clearing GPU memory");
  }

  void copy(void* to, const void* from, size_t bytes, const char* what) {
    note_wait();
    gpu_.make_current();
    cuda_check(cudaDeviceSynchronize(), what);
    if (bytes) cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, loading_), what);
    cuda_check(cudaStreamSynchronize(loading_), what);
  }

  Gpu gpu_;
  VacatableMemory vacatable_;
  cudaStream_t loading_ = nullptr;  // for memory and copies outside steps
};

}  // namespace

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail("the GPU failed while {}: {} ({})", what, cudaGetErrorString(status),
       cudaGetErrorName(status));
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

namespace {

cudaDeviceProp properties_of(int ordinal) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, ordinal), "asking for its properties");
  return properties;
}

bool is_hopper(const cudaDeviceProp& properties) {
  return properties.major == 9 && properties.minor == 0;
}

}  // namespace

bool cuda_device_is_usable(int ordinal) {
  return is_hopper(properties_of(ordinal));
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
      fail("the device cuda:{} was asked for and this machine has no NVIDIA driver", ordinal);
    fail("the NVIDIA driver supports CUDA {} and this build needs {}; update the driver",
         version(driver), version(runtime));
  }
  if (status != cudaSuccess)
    fail("the device cuda:{} was asked for and no GPU can be used: {}", ordinal,
         cudaGetErrorString(status));
  if (ordinal < 0 || ordinal >= count)
    fail("the device cuda:{} was asked for and this machine has {} GPUs", ordinal, count);
  const cudaDeviceProp properties = properties_of(ordinal);
  if (!is_hopper(properties))
    fail("this build runs on GPUs of compute capability 9.0 (Hopper) and cuda:{}, {}, has {}.{}",
         ordinal, properties.name, properties.major, properties.minor);
  return std::make_unique<CudaDevice>(ordinal);
}

std::shared_ptr<void> pin_for_cuda(void* memory, size_t bytes) {
  if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return {memory, [](void* pinned) { cudaHostUnregister(pinned); }};
}

std::unique_ptr<Stream> borrow_cuda_stream(Device& device, uintptr_t stream) {
  return dynamic_cast<CudaDevice&>(device).borrow(reinterpret_cast<cudaStream_t>(stream));
}

std::string describe_cuda_device(int ordinal) {
  const cudaDeviceProp properties = properties_of(ordinal);
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "asking for its driver");
  return fmt::format("{}, {} MiB, compute capability {}.{}, driver {}", properties.name,
                     properties.totalGlobalMem >> 20, properties.major, properties.minor,
                     version(driver));
}

}  // namespace invar
