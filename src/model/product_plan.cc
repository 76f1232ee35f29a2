#include "model/product_plan.h"

#include "kernels/row_parts.h"
#include "model/baseline.h"

namespace invar {

int ProductPlan::split_k(int defined, int64_t k) const {
  const Arithmetic& arithmetic = model_.arithmetic;
  return arithmetic.is_baseline ? baseline::split_k(rows_, k, arithmetic.baseline_split_k)
                                : defined;
}

bool ProductPlan::goes_by_heads() const {
  constexpr int64_t kByHeadRows = 64;  // with fewer, a product's memory is small anyway
  const DecoderSpec& spec = model_.spec;
  const Shard& shard = model_.weights->shard();
  const int parts = qkv_shares(rows_, model_.execution.team()).groups;
  const int64_t width = int64_t{shard.heads + 2 * shard.kv_heads} * spec.head_dim;
  return model_.kernels.qkv_product && !spec.joint_qk_norm && !spec.late_qk_norm &&
         !model_.arithmetic.is_exact && !model_.arithmetic.is_baseline && rows_ >= kByHeadRows &&
         shard.kv_heads % parts == 0 && spec.head_dim % kPanelWidth == 0 &&
         parts * qkv_scratch_stride(spec.head_dim) <= width;
}

const Matrix* ProductPlan::after_down(int layer) const {
  const auto& layers = model_.weights->layers();
  return model_.weights->shard().has_layer(layer + 1) ? &layers[layer + 1].qkv : nullptr;
}

}  // namespace invar
