#include "attention_arguments.h"

#include "operator_checks.h"

namespace invar::python {

namespace {

KvLayer cache_of(Borrower& b, CacheLayout layout, const py::dict& given, int32_t kv_heads,
                 int32_t head_dim) {
  KvLayer kv{.block_size = given["block_size"].cast<int32_t>(),
             .kv_heads = kv_heads,
             .head_dim = head_dim,
             .layout = layout};
  expect_block_size(kv.block_size);
  kv.keys = static_cast<bf16_t*>(
      b.elements(given["keys"], "BF16", {-1, kv_heads, kv.key_block()}, "keys"));
  kv.values = static_cast<bf16_t*>(
      b.elements(given["values"], "BF16", {b.shape()[0], kv_heads, kv.value_block()}, "values"));
  return kv;
}

}  // namespace

QkvParams rotation_of(Borrower& b, CacheLayout layout, const py::dict& given) {
  const auto heads = given["heads"].cast<int32_t>(), kv_heads = given["kv_heads"].cast<int32_t>(),
             e = given["head_dim"].cast<int32_t>();
  expect_heads(heads, kv_heads, e, given["window"].cast<int32_t>());
  const int64_t width = int64_t{heads + 2 * kv_heads} * e;
  QkvParams p{.qkv = b.floats(given["qkv"], {-1, width}, "qkv"), .qkv_stride = width};
  p.rows = b.shape()[0];
  expect_rows(p.rows);
  p.heads = heads;
  p.q_norm = b.floats_or_null(given["q_norm"], {e}, "q_norm");
  p.k_norm = b.floats_or_null(given["k_norm"], {e}, "k_norm");
  p.norm_eps = given["eps"].cast<float>();
  p.positions = b.integers(given["positions"], {p.rows}, "positions");
  p.cos = b.floats(given["cos"], {-1, e / 2}, "cos");
  p.sin = b.floats(given["sin"], {b.shape()[0], e / 2}, "sin");
  p.write_begin = b.integers(given["write_begin"], {p.rows + 1}, "write_begin");
  p.write_block = b.integers(given["write_block"], {p.rows}, "write_block");
  p.write_slot = b.integers(given["write_slot"], {p.rows}, "write_slot");
  p.kv = cache_of(b, layout, given, kv_heads, e);
  p.q = static_cast<bf16_t*>(
      b.elements(given["q"], "BF16", {p.rows, heads, round_up(e, kLeafPad)}, "q"));
  p.non_finite = static_cast<bool*>(b.elements(given["non_finite"], "BOOL", {p.rows}, "flags"));
  return p;
}

AttentionParams attention_of(Borrower& b, const py::dict& given, const QkvParams& rotation) {
  const int64_t width = round_up(int64_t{rotation.heads} * rotation.kv.head_dim, kLeafPad);
  AttentionParams p{.q = rotation.q, .rows = rotation.rows, .heads = rotation.heads};
  p.positions = rotation.positions;
  p.table_of = b.integers(given["table_of"], {p.rows}, "table_of");
  p.tables = static_cast<const int32_t* const*>(b.elements(given["tables"], "I64", {-1}, "tables"));
  p.window = given["window"].cast<int32_t>();
  p.kv = rotation.kv;
  p.out = {b.elements(given["out"], "BF16", {p.rows, width}, "out"), DType::bf16, width};
  p.fewest_rows = given["fewest_rows"].cast<int32_t>();
  p.most_rows = given["most_rows"].cast<int32_t>();
  p.few_rows = b.integers(given["few_rows"], {p.rows + 1}, "few_rows");
  p.score_scale = given["score_scale"].cast<double>();
  return p;
}

}  // namespace invar::python
