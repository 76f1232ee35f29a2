// Copies by the tensor memory accelerator (TMA), the barriers in shared memory that tell when they
// are there, and what kernels of several roles need besides.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/gpu.h"
#include "numerics/storage.h"

namespace invar::cuda {

constexpr int kSlice = 64;  // bf16 elements in a row of 128 bytes

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Barriers: 8 bytes of shared memory each. A phase ends when so many threads have arrived and
// all bytes that were announced have been copied; phases count 0, 1, 0, ...

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// After the last barrier_init, before other threads and copies use them (and a __syncthreads).
__device__ __forceinline__ void barriers_are_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives and announces so many bytes.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of this parity is over; the one before the first (parity 1) is.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; "
      "bra again; done:}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A ring of stages that one thread fills and others empty: barrier `full` of stage s at
// full + 8 * s, `empty` likewise. Every role walks through the stages with a copy of its own.
struct Ring {
  uint32_t full, empty;
  int stages;
  int stage = 0;
  uint32_t parity = 0;

  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // Moves on by `count` stages.
  __device__ void skip(int count) {
    const int to = stage + count;
    stage = to % stages;
    parity ^= to / stages & 1;
  }
  __device__ uint32_t full_now() const { return full + 8 * stage; }
  __device__ uint32_t empty_now() const { return empty + 8 * stage; }
  __device__ void init(int arrivals_to_empty) const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, arrivals_to_empty);
    }
    barriers_are_ready();
  }
};

// ---- Copies

constexpr uint64_t kEvictFirst = 0x12F0000000000000,  // policies of the L2 cache
    kEvictNormal = 0x1000000000000000;

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map));
}
// A box from these coordinates, the dense dimension first; its bytes count for the barrier.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int c0, int c1,
                                         int c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int c0, int c1,
                                         int c2, int c3, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// The same into both blocks of a cluster, at the same place of each; the bytes count for each one's
// barrier.
__device__ __forceinline__ void load_box_to_both(uint32_t to, const CUtensorMap& map, int c0,
                                                 int c1, int c2, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "h"(uint16_t{3})
      : "memory");
}
__device__ __forceinline__ void load_box_to_both(uint32_t to, const CUtensorMap& map, int c0,
                                                 int c1, int c2, int c3, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(uint16_t{3})
      : "memory");
}

// The same, of what is read once: it leaves the L2 cache first.
__device__ __forceinline__ void load_box_once(uint32_t to, const CUtensorMap& map, int c0, int c1,
                                              int c2, uint32_t barrier,
                                              uint64_t policy = kEvictFirst) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void load_box_once(uint32_t to, const CUtensorMap& map, int c0, int c1,
                                              int c2, int c3, uint32_t barrier,
                                              uint64_t policy = kEvictFirst) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

// A box of shared memory to these coordinates, or added to what lies there: one f32 addition for
// each element (numerics 0), made by the L2 cache. Elements outside of the array are left out.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int c0, int c1, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(from)
      : "memory");
}
__device__ __forceinline__ void add_box(const CUtensorMap& map, int c0, int c1, uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::
          "l"(&map),
      "r"(c0), "r"(c1), "r"(from)
      : "memory");
}
// This thread's boxes are under way together; all of them have been read; all have arrived.
__device__ __forceinline__ void boxes_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void boxes_are_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void boxes_are_written() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Bytes as they lie: a multiple of 16, from and to multiples of 16.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Brings bytes into the L2 cache: a multiple of 16, from a multiple of 16.
__device__ __forceinline__ void prefetch_bytes(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// What this thread has stored in shared memory is there for copies and tensor cores, too; before a
// barrier.
__device__ __forceinline__ void stores_are_seen() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// ---- Roles

// Registers per thread of this warpgroup from here on.
template <int kCount>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
// Named barriers, for some of a block's threads.
__device__ __forceinline__ void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address of `address` in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t rank, uint32_t address) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

// Arrives at a barrier of another block; the address is as there.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// ---- Kernels that overlap (programmatic dependent launch)

// The kernel behind this one in the stream may start when all blocks have said so: it may fetch
// what no kernel writes, weights, and waits below before it touches anything else.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the kernels before are done. Whoever is launched early calls it in every block.
__device__ __forceinline__ void wait_for_kernels_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- On the host

// An array of bf16 or f32 as TMA reads it: `sizes` elements along each dimension, the first one
// dense; `strides` bytes from one to the next along the others, multiples of 16. A copy takes a box
// of `box` elements, 128 bytes of the dense dimension; what lies outside of the array is read as
// zeros. In shared memory a box is rows of 128 bytes at a multiple of 1024, the 16-byte chunk c of
// row r in slot c ^ (r % 8). Not swizzled a box has rows of any multiple of 16 bytes, as they are.
template <int kDims>
struct TensorShape {
  uint64_t sizes[kDims];
  uint64_t strides[kDims - 1];
  uint32_t box[kDims];
};
CUtensorMap tensor_map(const void* data, DType type, int dims, const uint64_t* sizes,
                       const uint64_t* strides, const uint32_t* box, bool is_swizzled);
template <int kDims>
CUtensorMap tensor_map(const void* data, const TensorShape<kDims>& shape, bool is_swizzled = true,
                       DType type = DType::bf16) {
  return tensor_map(data, type, kDims, shape.sizes, shape.strides, shape.box, is_swizzled);
}

constexpr int kMaxSharedBytes = 227 << 10;  // that a block can have

struct LaunchShape {
  int blocks, threads, shared_bytes;
  int cluster = 1;
  bool early = false;  // may start before the kernels before it are done
};

template <typename... Params, typename... Args>
void launch(const char* what, void (*kernel)(Params...), const LaunchShape& shape,
            const Execution& on, const Args&... args) {
  const cudaStream_t stream = stream_of(on);  // its GPU is the current one from here on
  gpu_of(on).allow_shared(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(shape.blocks);
  config.blockDim = static_cast<unsigned>(shape.threads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), what);
}

}  // namespace invar::cuda
