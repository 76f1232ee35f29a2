// Attention of single rows over what is stored in 8 bits (attention_single.cuh, numerics 4.2).
#include "kernels/cuda/attention_single_plan.cuh"

namespace invar::cuda {

namespace {

template <int kHeadDim>
void attend_type(const AttentionParams& p, const Execution& on) {
  if (p.kv.stored.type == CacheType::int8)
    return single::attend<single::StoredRows<kHeadDim, CacheType::int8>>(p, {}, on, false);
  single::attend<single::StoredRows<kHeadDim, CacheType::fp8_e4m3>>(p, {}, on, false);
}

}  // namespace

void attend_single_stored(const AttentionParams& p, const Execution& on) {
  p.kv.head_dim == 64 ? attend_type<64>(p, on) : attend_type<128>(p, on);
}

}  // namespace invar::cuda
