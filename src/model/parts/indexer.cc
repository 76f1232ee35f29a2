#include "model/parts/indexer.h"

#include "kernels/indexer.h"

namespace invar {

namespace {

using enum TensorRole;

constexpr float kKeyNormEps = 1e-6f;

}  // namespace

void Indexer::visit(IndexerWeights& w, TensorVisitor& tensors, const TensorAxis& made_of) const {
  if (spec_.is_shared) return;
  const TensorAxis d = whole(model_.hidden), size = whole(spec_.size), heads = whole(spec_.heads);
  const TensorAxis queries = whole(int64_t{spec_.heads} * spec_.size);
  tensors.matrix(w.queries, {{index_query, "self_attn.indexer.wq_b.weight", queries, made_of}});
  tensors.matrix(w.key, {{index_key, "self_attn.indexer.wk.weight", size, d}});
  tensors.vector(w.key_norm, {{index_key_norm, "self_attn.indexer.k_norm.weight", size}});
  tensors.vector(w.key_norm_bias, {{index_key_norm_bias, "self_attn.indexer.k_norm.bias", size}});
  tensors.matrix(w.weights, {{index_weight, "self_attn.indexer.weights_proj.weight", heads, d}});
}

void Indexer::place(ActivationMemory& memory, IndexerActivations& at) const {
  if (spec_.is_shared) return;
  const int64_t queries = int64_t{spec_.heads} * spec_.size;
  at.queries = memory.array<float>(queries);
  at.key = memory.array<float>(spec_.size);
  at.weights = memory.array<float>(spec_.heads);
  at.q = {memory.array<bf16_t>(queries), DType::bf16, queries};
}

// q = turn(wq_b query), k = turn(LayerNorm(wk x)), weights = weights_proj x
void Indexer::prepare(const PartPass& p, const IndexerWeights& w, const IndexerActivations& at,
                      const Activation& normed, const Activation& query) const {
  if (spec_.is_shared) return;
  const StepTables& tables = p.ops.tables();
  const int64_t queries = int64_t{spec_.heads} * spec_.size;
  p.ops.product("index q", query, w.queries, nullptr, p.rows, at.queries, queries);
  turn(p, at.queries, spec_.heads);
  p.ops.round_part(at.queries, queries, queries, at.q);

  p.ops.product("index k", normed, w.key, nullptr, p.rows, at.key, spec_.size);
  p.ops.run("norm", p.ops.kernels().layer_norm,
            LayerNormParams{.x = at.key,
                            .x_stride = spec_.size,
                            .rows_of = nullptr,
                            .weight = w.key_norm,
                            .bias = w.key_norm_bias,
                            .eps = kKeyNormEps,
                            .rows = p.rows,
                            .width = spec_.size,
                            .out = {at.key, DType::f32, spec_.size}});
  turn(p, at.key, 1);
  p.ops.run("store index", p.ops.kernels().store_index,
            StoreIndexParams{.keys = at.key,
                             .stride = spec_.size,
                             .rows = p.rows,
                             .write_begin = tables.write_begin,
                             .write_block = tables.write_block,
                             .write_slot = tables.write_slot,
                             .kv = p.kv,
                             .non_finite = p.ops.non_finite()});
  p.ops.product("index weights", normed, w.weights, nullptr, p.rows, at.weights, spec_.heads);
}

void Indexer::turn(const PartPass& p, float* x, int heads) const {
  const RopeTable& rope = p.ops.ropes().index_of(layer_);
  p.ops.run("rope", p.ops.kernels().rotate_heads,
            RotateHeadsParams{.x = x,
                              .x_stride = int64_t{heads} * spec_.size,
                              .rows = p.rows,
                              .heads = heads,
                              .head_dim = spec_.size,
                              .positions = p.ops.tables().rotations,
                              .cos = rope.cos(),
                              .sin = rope.sin()});
}

// Where a row sees no more positions than it may choose these are all of them, and attention reads
// them where they are.
void Indexer::attend(const PartPass& p, const IndexerActivations& at, const Attend& attend) const {
  for (int64_t first = 0; first < p.rows;) {
    const Rows rows = alike_from(p, first);
    const bool sees_few_slots = sees_few(p, first);
    if (!sees_few_slots) {
      if (!spec_.is_shared) choose(p, at, rows);
      gather(p, rows);
    }
    attend.run_rows(first, rows.count, sees_few_slots ? nullptr : &p.ops.chosen_slots());
    first += rows.count;
  }
}

Indexer::Rows Indexer::alike_from(const PartPass& p, int64_t first) const {
  const bool is_few = sees_few(p, first);
  const int64_t most = is_few ? p.rows : std::min<int64_t>(p.rows, first + ChosenSlots::kRows);
  int64_t end = first + 1;
  while (end < most && sees_few(p, end) == is_few) ++end;
  return {first, end - first};
}

void Indexer::choose(const PartPass& p, const IndexerActivations& at, Rows rows) const {
  const StepTables& tables = p.ops.tables();
  const ChosenSlots& slots = p.ops.chosen_slots();
  const int32_t* positions = tables.positions + rows.first;
  p.ops.run("index scores", p.ops.kernels().index_scores,
            IndexScoresParams{.q = static_cast<const bf16_t*>(at.q.from(rows.first).data),
                              .q_stride = at.q.stride,
                              .weights = at.weights + rows.first * spec_.heads,
                              .weights_stride = spec_.heads,
                              .rows = rows.count,
                              .heads = spec_.heads,
                              .positions = positions,
                              .table_of = tables.table_of + rows.first,
                              .tables = tables.tables,
                              .kv = p.kv,
                              .scores = slots.scores(),
                              .scores_stride = slots.scores_stride()});
  p.ops.run("choose slots", p.ops.kernels().choose_slots,
            ChooseSlotsParams{.scores = slots.scores(),
                              .scores_stride = slots.scores_stride(),
                              .rows = rows.count,
                              .positions = positions,
                              .most = spec_.most,
                              .chosen = slots.of_row(rows.first)});
}

void Indexer::gather(const PartPass& p, Rows rows) const {
  const StepTables& tables = p.ops.tables();
  const ChosenSlots& slots = p.ops.chosen_slots();
  p.ops.run("gather slots", p.ops.kernels().gather_slots,
            GatherSlotsParams{.from = p.kv,
                              .to = slots.kv(),
                              .rows = rows.count,
                              .table_of = tables.table_of + rows.first,
                              .tables = tables.tables,
                              .chosen = slots.of_row(rows.first),
                              .most = spec_.most});
}

}  // namespace invar
