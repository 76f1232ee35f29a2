// Sums are (r0 + r1) + (r2 + r3) ..., each addition rounded and flushed as numerics 0 says.
#include <algorithm>

#include "base/check.h"
#include "collectives/cuda/peer_kernels.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

namespace invar::cuda {

namespace {

// The bits of a float of a slot that has not come. No operand has it: its NaNs are pushed as kNan.
constexpr uint32_t kMissing = 0xffffffff, kNan = 0x7fffffff;

// ---- Memory that other GPUs read and write

__device__ __forceinline__ void publish(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t look(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ uint4 peek(const uint4* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void poke(uint4* to, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ PeerWindow& window(const PeerView& p, int rank) {
  return *reinterpret_cast<PeerWindow*>(p.windows[rank]);
}

// How long a thread waits. A rank that dies must not leave the others waiting for ever.
class Patience {
 public:
  __device__ explicit Patience(const PeerView& p) : p_(p) {}

  // Asked after each look that was in vain.
  __device__ bool is_over() {
    if (++looks_ % 256) return false;
    volatile uint32_t* stopped = &window(p_, p_.rank).has_stopped;
    const uint64_t now = nanoseconds();
    if (begin_ == 0) begin_ = last_asked_ = now;
    if (!*stopped && !has_left(now) && now - begin_ < p_.patience) return false;
    *stopped = 1;
    *static_cast<volatile uint32_t*>(p_.gave_up) = 1;
    return true;
  }

 private:
  // The word is in host memory, which reads one warp after the other in half a microsecond each: a
  // rank that waits with 2048 warps would see what has come a millisecond late, and the others
  // would then wait as long for it, in every operation. So it is read seldom.
  __device__ bool has_left(uint64_t now) {
    if (now - last_asked_ < p_.asks_every) return false;
    last_asked_ = now;
    return *static_cast<const volatile uint32_t*>(p_.leaver) != 0;
  }

  const PeerView& p_;
  uint32_t looks_ = 0;
  uint64_t begin_ = 0, last_asked_ = 0;
};

// ---- One operation

// The number of this operation; every block counts.
__device__ __forceinline__ uint64_t begin_operation(const PeerView& p) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  return window(p, p.rank).operations[blockIdx.x] + 1;
}
// Also for the blocks that this launch does not have.
__device__ __forceinline__ void end_operation(const PeerView& p, uint64_t number) {
  __syncthreads();
  const uint32_t block = blockIdx.x + threadIdx.x * gridDim.x;
  if (block < kPeerBlocks) window(p, p.rank).operations[block] = number;
}

// Until this block of every rank has come to `phase` of the operation.
__device__ __forceinline__ void meet(const PeerView& p, int phase, uint64_t number) {
  __syncthreads();
  const int other = threadIdx.x;
  if (other < p.size && other != p.rank) {
    publish(&window(p, other).arrived[phase][p.rank][blockIdx.x], number);
    const uint64_t* theirs = &window(p, p.rank).arrived[phase][other][blockIdx.x];
    Patience patience(p);
    while (look(theirs) != number && !patience.is_over()) {
    }
  }
  __syncthreads();
}

// The same for the first time, with where everybody's operand lies.
__device__ __forceinline__ void show_operands(const PeerView& p, const void* mine, uint64_t number,
                                              const std::byte** operands) {
  const int other = threadIdx.x;
  if (other < p.size && other != p.rank)
    window(p, other).operand[p.rank][blockIdx.x] =
        reinterpret_cast<uint64_t>(mine) - reinterpret_cast<uint64_t>(p.windows[p.rank]);
  meet(p, 0, number);  // what a thread has written before is seen behind it
  if (other < p.size)
    operands[other] = other == p.rank
                          ? static_cast<const std::byte*>(mine)
                          : p.windows[other] + window(p, p.rank).operand[other][blockIdx.x];
  __syncthreads();
}

// ---- Sums

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
template <int N>
__device__ __forceinline__ float4 tree(const float4* v) {
  if constexpr (N == 1)
    return v[0];
  else
    return add(tree<N / 2>(v), tree<N / 2>(v + N / 2));
}

__device__ __forceinline__ uint32_t sent(float x) {
  return x == x ? __float_as_uint(x) : kNan;
}
__device__ __forceinline__ uint4 sent(float4 v) {
  return {sent(v.x), sent(v.y), sent(v.z), sent(v.w)};
}
__device__ __forceinline__ float4 received(uint4 v) {
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}
__device__ __forceinline__ bool is_missing(uint4 v) {
  return v.x == kMissing || v.y == kMissing || v.z == kMissing || v.w == kMissing;
}

// The float that another rank has pushed here; the place is free again then.
__device__ __forceinline__ float4 take(const PeerView& p, uint4* at) {
  Patience patience(p);
  uint4 v = peek(at);
  while (is_missing(v) && !patience.is_over()) v = peek(at);
  poke(at, {kMissing, kMissing, kMissing, kMissing});
  return received(v);
}

template <int N>
__global__ __launch_bounds__(kPeerThreads) void push_and_add_kernel(PeerView p, float4* data,
                                                                    int64_t count) {
  const uint64_t number = begin_operation(p);
  // Slots are used in turns: who pushes has had everything of the operation before, whose ranks had
  // done with the one before that.
  const auto slot = [&](int at, int of) {
    return reinterpret_cast<uint4*>(p.windows[at] + PeerWindow::kSlotsAt +
                                    ((number & 1) * N + of) * p.slot_bytes);
  };
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < count; i += step) {
    const uint4 mine = sent(data[i]);
#pragma unroll
    for (int k = 1; k < N; ++k) {
      const int other = (p.rank + k) % N;
      poke(slot(other, p.rank) + i, mine);
    }
  }
  for (int64_t i = first; i < count; i += step) {
    float4 v[N];
#pragma unroll
    for (int r = 0; r < N; ++r) v[r] = r == p.rank ? data[i] : take(p, slot(p.rank, r) + i);
    data[i] = tree<N>(v);
  }
  end_operation(p, number);
}

// The floats4 of [begin, end) of a rank's share that this thread has.
template <int N>
__device__ __forceinline__ void add_range(float4* const* data, int64_t begin, int64_t end) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  constexpr int kAtOnce = N <= 2 ? 4 : 2;
  int64_t i = begin + int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) {
    float4 v[kAtOnce][N];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
      for (int r = 0; r < N; ++r) v[k][r] = data[r][i + k * step];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const float4 sum = tree<N>(v[k]);
#pragma unroll
      for (int r = 0; r < N; ++r) data[r][i + k * step] = sum;
    }
  }
  for (; i < end; i += step) {
    float4 v[N];
#pragma unroll
    for (int r = 0; r < N; ++r) v[r] = data[r][i];
    const float4 sum = tree<N>(v);
#pragma unroll
    for (int r = 0; r < N; ++r) data[r][i] = sum;
  }
}

// A float of a share is read and written by its rank alone, so that sums may take the place of
// operands.
template <int N>
__global__ __launch_bounds__(kPeerThreads) void add_shares_kernel(PeerView p, float4* mine,
                                                                  float4* own, int64_t count) {
  __shared__ const std::byte* operands[kMostPeers];
  const uint64_t number = begin_operation(p);
  show_operands(p, mine, number, operands);
  float4* data[N];
#pragma unroll
  for (int r = 0; r < N; ++r)
    data[r] =
        own && r == p.rank ? own : reinterpret_cast<float4*>(const_cast<std::byte*>(operands[r]));
  add_range<N>(data, count * p.rank / N, count * (p.rank + 1) / N);
  meet(p, 1, number);
  end_operation(p, number);
}

template <int N>
__global__ __launch_bounds__(kPeerThreads) void add_share_kernel(PeerOperands p, int64_t count) {
  float4* data[N];
#pragma unroll
  for (int r = 0; r < N; ++r) data[r] = reinterpret_cast<float4*>(p.data[r]);
  add_range<N>(data, count * p.rank / N, count * (p.rank + 1) / N);
}

template <int N>
__global__ __launch_bounds__(kPeerThreads) void add_gathered_kernel(const float4* gathered,
                                                                    float4* sum, int64_t count) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float4 v[N];
#pragma unroll
    for (int r = 0; r < N; ++r) v[r] = gathered[r * count + i];
    sum[i] = tree<N>(v);
  }
}

__global__ __launch_bounds__(kPeerThreads) void add_chain_kernel(int ranks, const float* gathered,
                                                                 float* sum, int64_t count) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    float total = gathered[i];
    for (int r = 1; r < ranks; ++r) total = total + gathered[r * count + i];
    sum[i] = total;
  }
}

__global__ __launch_bounds__(kPeerThreads) void gather_pieces_kernel(PeerView p, const uint4* mine,
                                                                     int64_t count, uint4* all,
                                                                     int64_t stride) {
  __shared__ const std::byte* pieces[kMostPeers];
  const uint64_t number = begin_operation(p);
  show_operands(p, mine, number, pieces);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int k = 0; k < p.size; ++k) {
    const int r = (p.rank + k) % p.size;
    const uint4* piece = reinterpret_cast<const uint4*>(pieces[r]);
#pragma unroll 4
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
      all[r * stride + i] = piece[i];
  }
  meet(p, 1, number);  // the pieces may change behind it
  end_operation(p, number);
}

// ---- Launches

int blocks_for(int64_t units) {
  return static_cast<int>(
      std::clamp<int64_t>((units + kPeerThreads - 1) / kPeerThreads, 1, kPeerBlocks));
}

template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), int64_t units, const Execution& on, const Args&... args) {
  const cudaStream_t stream = stream_of(on);
  cudaLaunchAttribute early = {};  // may begin, and wait, before the kernel before it is done
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(blocks_for(units));
  config.blockDim = kPeerThreads;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...),
             "exchanging partial sums");
}

// f with the number of ranks as a constant.
template <typename F>
void with_size(int size, F f) {
  switch (size) {
    case 2:
      return f(std::integral_constant<int, 2>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 8:
      return f(std::integral_constant<int, 8>());
    default:
      CHECK(false, "ranks of a group of GPUs come in 2, 4 or 8, of NCCL in 16, too");
  }
}

}  // namespace

void push_and_add(const PeerView& group, float* data, int64_t count, const Execution& on) {
  CHECK(static_cast<size_t>(count) * sizeof(float) <= group.slot_bytes, "more than a slot holds");
  with_size(group.size, [&](auto n) {
    launch(push_and_add_kernel<n>, count / 4, on, group, reinterpret_cast<float4*>(data),
           count / 4);
  });
}

void add_shares(const PeerView& group, float* data, int64_t count, const Execution& on,
                float* own) {
  with_size(group.size, [&](auto n) {
    launch(add_shares_kernel<n>, count / 4 / n, on, group, reinterpret_cast<float4*>(data),
           reinterpret_cast<float4*>(own), count / 4);
  });
}

void gather_pieces(const PeerView& group, const void* mine, int64_t bytes, void* all,
                   int64_t stride, const Execution& on) {
  launch(gather_pieces_kernel, bytes / 16, on, group, static_cast<const uint4*>(mine), bytes / 16,
         static_cast<uint4*>(all), stride / 16);
}

void add_gathered(int size, const float* gathered, float* sum, int64_t count, const Execution& on) {
  const auto add = [&](auto n) {
    launch(add_gathered_kernel<n>, count / 4, on, reinterpret_cast<const float4*>(gathered),
           reinterpret_cast<float4*>(sum), count / 4);
  };
  if (size == 16) return add(std::integral_constant<int, 16>());
  with_size(size, add);
}

void add_chain(int size, const float* gathered, float* sum, int64_t count, const Execution& on) {
  launch(add_chain_kernel, count, on, size, gathered, sum, count);
}

void add_share(const PeerOperands& operands, int64_t count, const Execution& on) {
  with_size(operands.size, [&](auto n) {
    add_share_kernel<n>
        <<<blocks_for(count / 4 / n), kPeerThreads, 0, stream_of(on)>>>(operands, count / 4);
    cuda_launched("adding partial sums");
  });
}

}  // namespace invar::cuda
