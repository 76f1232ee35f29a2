#include "model/parts/attend.h"

namespace invar {

void Attend::copy_slots() const {
  const StepTables& tables = p_.ops.tables();
  if (tables.num_copies == 0 || spec_.shares_keys) return;
  const Kernels& kernels = p_.ops.kernels();
  p_.ops.run("copy_slots", p_.kv.stored.data ? kernels.copy_stored : kernels.copy_slots,
             CopySlotsParams{p_.kv, tables.copies, tables.num_copies});
}

QkvParams Attend::rotation(const RopeTable& rope, const float* q_norm, const float* k_norm) const {
  const StepTables& tables = p_.ops.tables();
  KvLayer own = p_.kv;
  if (spec_.shares_keys) own.kv_heads = 0;  // then there are queries alone
  return {.qkv = at_.products,
          .qkv_stride = products_width(),
          .rows = p_.rows,
          .heads = share_.heads,
          .q_norm = q_norm,
          .k_norm = k_norm,
          .norm_eps = model_.norm_eps,
          .positions = tables.rotations,
          .cos = rope.cos(),
          .sin = rope.sin(),
          .write_begin = tables.write_begin,
          .write_block = tables.write_block,
          .write_slot = tables.write_slot,
          .kv = own,
          .q = at_.q,
          .non_finite = p_.ops.non_finite()};
}

bool Attend::rotates() const {
  return p_.ops.kernels().rotated_attention && p_.ops.tables().rows_are_apart && !p_.ops.tape() &&
         !p_.kv.stored.data && !spec_.latent && !spec_.shares_keys && !p_.hooks.is_traced() &&
         !at_.products_are_wanted;
}

void Attend::store_slots() const {
  if (!p_.kv.stored.data) return;
  const StepTables& tables = p_.ops.tables();
  if (!spec_.shares_keys)
    p_.ops.run("store", p_.ops.kernels().store_slots,
               StoreSlotsParams{.kv = p_.kv,
                                .rows = p_.rows,
                                .write_begin = tables.write_begin,
                                .write_block = tables.write_block,
                                .write_slot = tables.write_slot});
  p_.ops.run("load", p_.ops.kernels().load_slots,
             LoadSlotsParams{.kv = p_.kv,
                             .rows = p_.rows,
                             .window = spec_.window,
                             .positions = tables.positions,
                             .table_of = tables.table_of,
                             .tables = tables.tables,
                             .chunk = spec_.chunk});
}

AttentionParams Attend::params() const {
  const StepTables& tables = p_.ops.tables();
  return {.q = at_.q,
          .rows = p_.rows,
          .heads = share_.heads,
          .positions = tables.positions,
          .table_of = tables.table_of,
          .tables = tables.tables,
          .window = spec_.window,
          .kv = p_.kv,
          .out = at_.out,
          .scratch = p_.ops.attention_scratch(),
          .fewest_rows = tables.fewest_rows,
          .most_rows = tables.most_rows,
          .few_rows = tables.few_rows,
          .rows_are_even = tables.rows_are_even,
          .shared = tables.shared,
          .shared_splits = tables.shared_splits,
          .num_shared = tables.num_shared,
          .score_scale = spec_.score_scale,
          .score_cap = spec_.score_cap,
          .sinks = at_.sinks,
          .chunk = spec_.chunk};
}

// Attention to what a row sees in both directions: that of its last slot from its first one on.
PartialAttentionParams Attend::params_ahead() const {
  PartialAttentionParams ahead{.of = params()};
  for (const SeenSlots& seen : p_.ops.tables().seen) {
    if (seen.window != spec_.window) continue;
    ahead.begin = seen.first;
    ahead.of.positions = seen.last;
  }
  ahead.of.window = 0;
  return ahead;
}

void Attend::run(const QkvParams& rotation) const {
  const Kernels& kernels = p_.ops.kernels();
  const char* name = "attention";
  if (spec_.sees_ahead) return p_.ops.run(name, kernels.partial_attention, params_ahead());
  if (p_.ops.is_host_baseline()) return p_.ops.baseline_attention(name, params());
  if (p_.ops.tape())
    return p_.ops.run(name, kernels.partial_attention,
                      PartialAttentionParams{.of = params(), .max = at_.max, .sum = at_.sum});
  if (!rotates()) return p_.ops.run(name, kernels.attention, params());
  const auto short_attention = p_.ops.at_once().short_attention;
  const bool is_short = p_.ops.tables().contexts_are_short && short_attention;
  p_.ops.run(name, is_short ? short_attention : kernels.rotated_attention,
             RotatedAttentionParams{.rotation = rotation, .of = params()});
}

void Attend::run_rows(int64_t first, int64_t rows, const ChosenSlots* gathered) const {
  AttentionParams some = params();
  some.q += first * share_.heads * round_up(model_.head_dim_of(spec_), 32);
  some.out = some.out.from(first);
  some.rows = rows;
  some.positions += first;
  some.table_of += first;
  if (gathered) {
    some.positions = gathered->positions();
    some.table_of = gathered->table_of();
    some.tables = gathered->tables();
    some.kv = gathered->kv();
  }
  if (p_.ops.is_host_baseline()) return p_.ops.baseline_attention("attention", some);
  p_.ops.run("attention", p_.ops.kernels().attention, some);
}

}  // namespace invar
