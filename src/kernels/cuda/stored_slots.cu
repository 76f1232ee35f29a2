// Keys and values in 8 bits on a GPU (numerics 4.2): stored by a warp a slot and head, read by a
// block a leaf of slots.
#include "kernels/cuda/stored_slots.h"

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/operations.h"

namespace invar::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// Where a key (or value, of heads from kv_heads on) is: StoredKv::key and value for a device.
__device__ StoredKv::Place place(const StoredKv& kv, int64_t block, int64_t head, int64_t slot) {
  uint8_t* first = kv.data + block * kv.block_bytes() + head * kv.head_bytes();
  return {first + slot * kv.row_bytes(),
          reinterpret_cast<float*>(first + kv.block_size * kv.row_bytes()) + slot};
}
__device__ StoredKv::Place key_place(const StoredKv& kv, int64_t block, int64_t head,
                                     int64_t slot) {
  return place(kv, block, head, slot);
}
__device__ StoredKv::Place value_place(const StoredKv& kv, int64_t block, int64_t head,
                                       int64_t slot) {
  return place(kv, block, kv.kv_heads + head, slot);
}

// A warp stores one key or value of E bf16, whose element e `element(e)` gives.
template <typename Element>
__device__ void store(const StoredKv& kv, const StoredKv::Place& to, Element element) {
  const int lane = threadIdx.x % kWarp;
  if (kv.type == CacheType::fp8_e4m3) {
    for (int e = lane; e < kv.head_dim; e += kWarp) to.row[e] = e4m3::from_bf16(element(e));
    return;
  }
  int largest = 0;  // finite: the cache holds nothing else
  for (int e = lane; e < kv.head_dim; e += kWarp) largest = max(largest, element(e) & 0x7fff);
  largest = __reduce_max_sync(kAllLanes, largest);
  float scale = __fdiv_rn(bf16_to_f32(static_cast<bf16_t>(largest)), 127.0f);
  if (scale == 0.0f) scale = 1.0f;
  const float inverse = 1.0f / scale;
  for (int e = lane; e < kv.head_dim; e += kWarp)
    to.row[e] = static_cast<uint8_t>(__float2int_rn(bf16_to_f32(element(e)) * inverse));
  if (lane == 0) *to.scale = scale;
}

__global__ void store_slots_kernel(StoreSlotsParams p) {
  const KvLayer& kv = p.kv;
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t t = i / (2 * kv.kv_heads), head = i / 2 % kv.kv_heads;
  let_next_kernel_start();
  wait_for_kernels_before();
  if (t >= p.rows) return;
  const bool is_key = i % 2 == 0;
  for (int32_t n = p.write_begin[t]; n < p.write_begin[t + 1]; ++n) {
    const int64_t block = p.write_block[n], slot = p.write_slot[n];
    if (is_key)
      store(kv.stored, key_place(kv.stored, block, head, slot),
            [&](int e) { return kv.keys[kv.key_index(block, head, slot, e)]; });
    else
      store(kv.stored, value_place(kv.stored, block, head, slot),
            [&](int e) { return kv.values[kv.value_index(block, head, slot, e)]; });
  }
}

// Byte i of a stored word as the bf16 that it stands for; scale of int8.
__device__ __forceinline__ uint32_t loaded(CacheType type, uint32_t word, int i, float scale) {
  const auto byte = static_cast<uint8_t>(word >> 8 * i);
  if (type == CacheType::fp8_e4m3) return e4m3::to_bf16(byte);
  return f32_to_bf16(static_cast<float>(static_cast<int8_t>(byte)) * scale);
}

// Four elements of a stored row, from `e` on, to where `index(e)` says.
template <typename Index>
__device__ __forceinline__ void load_four(const StoredKv& kv, const StoredKv::Place& from, int e,
                                          bf16_t* to, bool is_row, Index index) {
  const uint32_t word = *reinterpret_cast<const uint32_t*>(from.row + e);
  const float scale = kv.type == CacheType::int8 ? *from.scale : 0.0f;
  uint32_t x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = loaded(kv.type, word, i, scale);
  if (is_row && e + 4 <= kv.head_dim) {
    *reinterpret_cast<uint2*>(to + index(e)) = {x[0] | x[1] << 16, x[2] | x[3] << 16};
    return;
  }
  for (int i = 0; i < 4 && e + i < kv.head_dim; ++i) to[index(e + i)] = static_cast<bf16_t>(x[i]);
}

__device__ void load_leaf(const KvLayer& kv, int64_t block, int64_t head, int64_t first) {
  const int fours = (kv.head_dim + 3) / 4;
  const bool is_row = kv.layout == CacheLayout::rows;
  for (int i = threadIdx.x; i < kLeafPad * fours; i += kThreads) {
    const int64_t slot = first + i / fours;
    const int e = i % fours * 4;
    load_four(kv.stored, key_place(kv.stored, block, head, slot), e, kv.keys, is_row,
              [&](int at) { return kv.key_index(block, head, slot, at); });
    load_four(kv.stored, value_place(kv.stored, block, head, slot), e, kv.values, is_row,
              [&](int at) { return kv.value_index(block, head, slot, at); });
  }
}

// The slots that rows of one table see, from the lowest to the highest; all threads call this with
// the last of these rows.
struct Seen {
  int lowest, highest;
};
__device__ Seen seen_by_rows(const LoadSlotsParams& p, int last) {
  __shared__ int first, lowest, highest;
  if (threadIdx.x == 0) first = 0, lowest = INT32_MAX, highest = 0;
  __syncthreads();
  for (int row = last - static_cast<int>(threadIdx.x); row >= 0; row -= kThreads)
    if (p.table_of[row] != p.table_of[last]) {
      atomicMax(&first, row + 1);
      break;
    }
  __syncthreads();
  for (int row = first + static_cast<int>(threadIdx.x); row <= last; row += kThreads) {
    const int position = p.positions[row];
    atomicMin(&lowest, p.window > 0 ? max(0, position - p.window + 1) : 0);
    atomicMax(&highest, position);
  }
  __syncthreads();
  return {lowest, highest};
}

// Blocks (x, row) share out the leaves of the tables whose last row that is, and that have so many
// rows.
__global__ void load_slots_kernel(LoadSlotsParams p, int fewest_rows) {
  const int row = static_cast<int>(blockIdx.y), before = row - fewest_rows + 1;
  if (row + 1 < p.rows && p.table_of[row + 1] == p.table_of[row]) return;
  if (before < 0 || p.table_of[before] != p.table_of[row]) return;
  const Seen seen = seen_by_rows(p, row);
  const int32_t* table = p.tables[p.table_of[row]];
  const int leaves = p.kv.block_size / kLeafPad, heads = p.kv.kv_heads;
  const int begin = seen.lowest / kLeafPad * heads, end = (seen.highest / kLeafPad + 1) * heads;
  for (int i = begin + static_cast<int>(blockIdx.x); i < end; i += static_cast<int>(gridDim.x)) {
    const int leaf = i / heads;
    load_leaf(p.kv, table[leaf / leaves], i % heads, leaf % leaves * kLeafPad);
  }
}

// A block a head; copies in order.
__global__ void copy_stored_kernel(CopySlotsParams p) {
  const StoredKv& kv = p.kv.stored;
  const int64_t head = blockIdx.x, bytes = kv.row_bytes();
  const auto copy = [&](const StoredKv::Place& to, const StoredKv::Place& from, int64_t slots) {
    for (int64_t i = threadIdx.x; i < slots * bytes; i += kThreads) to.row[i] = from.row[i];
    if (kv.type == CacheType::int8)
      for (int64_t i = threadIdx.x; i < slots; i += kThreads) to.scale[i] = from.scale[i];
  };
  for (int64_t n = 0; n < p.count; ++n) {
    const SlotCopy c = p.copies[n];
    copy(key_place(kv, c.to, head, c.begin), key_place(kv, c.from, head, c.begin), c.end - c.begin);
    copy(value_place(kv, c.to, head, c.begin), value_place(kv, c.from, head, c.begin),
         c.end - c.begin);
    __syncthreads();
  }
}

// Of tables with so many rows.
void load_tables(const LoadSlotsParams& p, int fewest_rows, const Execution& on) {
  constexpr unsigned kBeside = 64;  // blocks of a row
  constexpr int64_t kMostRows = 65535;
  if (p.rows == 0) return;
  CHECK(p.rows <= kMostRows, "rows of a step");
  load_slots_kernel<<<dim3(kBeside, static_cast<unsigned>(p.rows)), kThreads, 0, stream_of(on)>>>(
      p, fewest_rows);
  cuda_launched("reading keys and values of 8 bits");
}

}  // namespace

void store_slots(const StoreSlotsParams& p, const Execution& on) {
  if (p.rows == 0) return;
  const int64_t warps = p.rows * 2 * p.kv.kv_heads;
  launch("storing keys and values in 8 bits", store_slots_kernel,
         {.blocks = static_cast<int>((warps + kWarps - 1) / kWarps),
          .threads = kThreads,
          .shared_bytes = 0,
          .early = true},
         on, p);
}

void load_slots(const LoadSlotsParams& p, const Execution& on) {
  load_tables(p, 1, on);
}

void load_slots_of_many_rows(const LoadSlotsParams& p, const Execution& on) {
  if (!single_reads_stored(p.kv)) return load_tables(p, 1, on);
  if (p.rows >= kManyRows) load_tables(p, kManyRows, on);
}

void copy_stored(const CopySlotsParams& p, const Execution& on) {
  if (p.kv.kv_heads == 0) return;  // a layer with a state has no keys
  copy_stored_kernel<<<static_cast<unsigned>(p.kv.kv_heads), kThreads, 0, stream_of(on)>>>(p);
  cuda_launched("copying slots of 8 bits");
}

}  // namespace invar::cuda
