#include "device/cuda/vacatable_memory.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace invar {

namespace {

constexpr size_t kPage = size_t{2} << 20;

template <typename Function>
void find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  cuda_check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result),
             "asking its driver for virtual memory");
  if (result != cudaDriverEntryPointSuccess)
    fail("the NVIDIA driver does not know {}; update the driver", name);
  function = reinterpret_cast<Function>(found);
}

// The driver's library is reached through the runtime: a machine without a driver runs this
// program, too.
struct Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;

  Driver() {
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", free);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

void check(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS)
    fail("the GPU failed while {}: the driver's error {}", what, static_cast<int>(status));
}

CUdeviceptr number_of(void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

CUmemAllocationProp properties_on(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return properties;
}

}  // namespace

VacatableMemory::VacatableMemory(int ordinal) : properties_(properties_on(ordinal)) {}

bool VacatableMemory::map(void* address, Range& range) const {
  const CUresult made = driver().create(&range.pages, range.bytes, &properties_, 0);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check(made, "allocating GPU memory");
  const CUmemAccessDesc access{.location = properties_.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  check(driver().map(number_of(address), range.bytes, 0, range.pages, 0), "mapping GPU memory");
  check(driver().set_access(number_of(address), range.bytes, &access, 1), "mapping GPU memory");
  range.is_mapped = true;
  return true;
}

void* VacatableMemory::allocate(size_t bytes) {
  Range range{.bytes = (bytes + kPage - 1) / kPage * kPage};
  CUdeviceptr number = 0;
  check(driver().reserve(&number, range.bytes, kPage, 0, 0), "reserving addresses");
  void* address = reinterpret_cast<void*>(number);
  if (!map(address, range)) {
    driver().free(number, range.bytes);
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  ranges_.emplace(address, range);
  return address;
}

void VacatableMemory::release(void* address) {
  vacate(address);
  const std::lock_guard lock(mutex_);
  driver().free(number_of(address), ranges_.at(address).bytes);
  ranges_.erase(address);
}

void VacatableMemory::vacate(void* address) {
  const std::lock_guard lock(mutex_);
  Range& range = ranges_.at(address);
  if (!range.is_mapped) return;
  driver().unmap(number_of(address), range.bytes);
  driver().release(range.pages);
  range.is_mapped = false;
}

bool VacatableMemory::occupy(void* address) {
  const std::lock_guard lock(mutex_);
  Range& range = ranges_.at(address);
  return range.is_mapped || map(address, range);
}

}  // namespace invar
