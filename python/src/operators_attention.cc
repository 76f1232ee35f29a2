// Attention over whole sequences, and its backward.
#include <algorithm>

#include "base/error.h"
#include "operators.h"

namespace invar::python {

namespace {

constexpr int32_t kBlock = 64;  // slots of a block of keys and values

}  // namespace

// Rotated queries, and keys and values in blocks; where each row's are. Beyond the rows of the
// sequences it has rows of one more, so that all are whole leaves; its values are zeros.
struct Operators::Cache {
  int64_t rows = 0;  // all
  std::vector<int32_t> positions, table_of, write_begin, write_block, write_slot;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<const int32_t*> tables;
  KvLayer kv;
  DeviceArray<bf16_t> keys, values, q;
  DeviceArray<float> qkv;
  DeviceArray<bool> non_finite;

  explicit Cache(const AttentionShape& shape) {
    std::vector<int32_t> lengths = shape.lengths;
    rows = round_up(shape.rows(), kLeafPad);
    if (rows > shape.rows()) lengths.push_back(static_cast<int32_t>(rows - shape.rows()));
    int32_t block = 0;
    for (const int32_t length : lengths) {
      auto& own = blocks.emplace_back();
      for (int32_t i = 0; i < length; ++i) {
        if (i % kBlock == 0) own.push_back(block++);
        positions.push_back(i);
        table_of.push_back(static_cast<int32_t>(blocks.size()) - 1);
        write_begin.push_back(static_cast<int32_t>(write_begin.size()));
        write_block.push_back(own.back());
        write_slot.push_back(i % kBlock);
      }
    }
    write_begin.push_back(static_cast<int32_t>(write_begin.size()));
    for (const auto& own : blocks) tables.push_back(own.data());
    kv = {.block_size = kBlock, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  }
  int64_t num_blocks() const { return write_block.empty() ? 0 : write_block.back() + 1; }

  AttentionParams params(const AttentionShape& shape, const Activation& out) const {
    return {.q = q.data(),
            .rows = rows,
            .heads = shape.heads,
            .positions = positions.data(),
            .table_of = table_of.data(),
            .tables = tables.data(),
            .window = shape.window,
            .kv = kv,
            .out = out,
            .score_scale = shape.score_scale,
            .score_cap = shape.score_cap};
  }
};

void Operators::fill_cache(Cache& cache, const float* qkv, const AttentionShape& shape) {
  const int64_t width = shape.qkv_width();
  cache.keys = array<bf16_t>(cache.num_blocks() * shape.kv_heads * cache.kv.key_block());
  cache.values = array<bf16_t>(cache.num_blocks() * shape.kv_heads * cache.kv.value_block());
  cache.q = array<bf16_t>(cache.rows * shape.heads * round_up(shape.head_dim, kLeafPad));
  cache.qkv = array<float>(cache.rows * width);
  cache.non_finite = array<bool>(cache.rows);
  cache.kv.keys = cache.keys.data();
  cache.kv.values = cache.values.data();
  std::copy_n(qkv, shape.rows() * width, cache.qkv.data());
  const std::vector<float> q_norm = rounded_vector(shape.q_norm, shape.head_dim),
                           k_norm = rounded_vector(shape.k_norm, shape.head_dim);
  run(kernels_.qkv, QkvParams{.qkv = cache.qkv.data(),
                              .qkv_stride = width,
                              .rows = cache.rows,
                              .heads = shape.heads,
                              .q_norm = shape.q_norm ? q_norm.data() : nullptr,
                              .k_norm = shape.k_norm ? k_norm.data() : nullptr,
                              .norm_eps = shape.eps,
                              .positions = cache.positions.data(),
                              .cos = shape.cos,
                              .sin = shape.sin,
                              .write_begin = cache.write_begin.data(),
                              .write_block = cache.write_block.data(),
                              .write_slot = cache.write_slot.data(),
                              .kv = cache.kv,
                              .q = cache.q.data(),
                              .non_finite = cache.non_finite.data()});
  const bool* end = cache.non_finite.data() + cache.rows;
  if (std::find(static_cast<const bool*>(cache.non_finite.data()), end, true) != end)
    fail("attention: a key or a value was not finite");
}

void Operators::attention(const float* qkv, const AttentionShape& shape, float* out, float* max,
                          float* sum) {
  const std::lock_guard lock(mutex_);
  Cache cache(shape);
  fill_cache(cache, qkv, shape);
  const int64_t width = int64_t{shape.heads} * shape.head_dim, stride = activation_stride(width);
  const auto memory = array<bf16_t>(cache.rows * stride);
  const auto all_max = array<float>(cache.rows * shape.heads),
             all_sum = array<float>(cache.rows * shape.heads);
  const Activation attended{memory.data(), DType::bf16, stride};
  run(kernels_.partial_attention,
      PartialAttentionParams{
          .of = cache.params(shape, attended), .max = all_max.data(), .sum = all_sum.data()});
  widen(attended, shape.rows(), width, out);
  std::copy_n(all_max.data(), shape.rows() * shape.heads, max);
  std::copy_n(all_sum.data(), shape.rows() * shape.heads, sum);
}

void Operators::paged_attention(const QkvParams& rotation, const AttentionParams& attention) {
  const std::lock_guard lock(mutex_);
  std::fill_n(rotation.non_finite, rotation.rows, false);
  run(kernels_.qkv, rotation);
  const bool* end = rotation.non_finite + rotation.rows;
  if (std::find(static_cast<const bool*>(rotation.non_finite), end, true) != end)
    fail("attention: a key or a value was not finite");
  run(kernels_.attention, attention);
}

void Operators::attention_backward(const float* d_out, const float* qkv, const float* out,
                                   const float* max, const float* sum, const AttentionShape& shape,
                                   float* d_qkv, float* q_gradient, float* k_gradient) {
  const std::lock_guard lock(mutex_);
  Cache cache(shape);
  fill_cache(cache, qkv, shape);
  const int64_t e = shape.head_dim, width = shape.heads * e, all = shape.qkv_width();
  const int64_t real = shape.rows(), heads = shape.heads, rows = cache.rows;
  DeviceArray<bf16_t> out_memory, d_memory;
  const auto all_max = array<float>(rows * heads), all_sum = array<float>(rows * heads);
  std::fill_n(all_sum.data(), rows * heads, 1.0f);
  std::copy_n(max, real * heads, all_max.data());
  std::copy_n(sum, real * heads, all_sum.data());
  const auto d_heads = array<float>(rows * all), rs = array<float>(rows * (heads + shape.kv_heads));
  const int64_t stride = training_.attention_scratch(shape.longest(), e);
  const auto scratch = array<std::byte>(stride * pool_.size());
  run(training_.attention_backward,
      AttentionBackwardParams{
          .forward = cache.params(shape, rounded(out, real, width, rows, out_memory)),
          .max = all_max.data(),
          .sum = all_sum.data(),
          .d_out = rounded(d_out, real, width, rows, d_memory),
          .max_positions = std::max(shape.longest(), cache.positions.back() + 1),
          .d_qkv = d_heads.data(),
          .d_qkv_stride = all,
          .scratch = scratch.data(),
          .scratch_stride = stride});
  const std::vector<float> q_norm = rounded_vector(shape.q_norm, e),
                           k_norm = rounded_vector(shape.k_norm, e);
  const auto memory = array<bf16_t>(rows * activation_stride(all));
  const Activation rounded_d{memory.data(), DType::bf16, activation_stride(all)};
  run(training_.qkv_backward, QkvBackwardParams{.d_qkv = d_heads.data(),
                                                .d_qkv_stride = all,
                                                .qkv = shape.q_norm ? cache.qkv.data() : nullptr,
                                                .qkv_stride = all,
                                                .rows = rows,
                                                .heads = shape.heads,
                                                .kv_heads = shape.kv_heads,
                                                .head_dim = shape.head_dim,
                                                .q_norm = shape.q_norm ? q_norm.data() : nullptr,
                                                .k_norm = shape.k_norm ? k_norm.data() : nullptr,
                                                .norm_eps = shape.eps,
                                                .positions = cache.positions.data(),
                                                .cos = shape.cos,
                                                .sin = shape.sin,
                                                .rs = rs.data(),
                                                .out = rounded_d});
  widen(rounded_d, real, all, d_qkv);
  const auto head_norms = [&](int64_t first, int64_t count, float* gradient) {
    if (!gradient) return;
    run(training_.norm_gradient, NormGradientParams{.dy = d_heads.data() + first * e,
                                                    .dy_stride = all,
                                                    .x = cache.qkv.data() + first * e,
                                                    .x_stride = all,
                                                    .rs = rs.data() + first,
                                                    .rs_stride = heads + shape.kv_heads,
                                                    .rows = rows,
                                                    .heads = count,
                                                    .width = e,
                                                    .gradient = gradient});
  };
  head_norms(0, heads, q_gradient);
  head_norms(heads, shape.kv_heads, k_gradient);
}

}  // namespace invar::python
