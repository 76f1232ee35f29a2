#include "model/operations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "model/parts/layer_pass.h"

namespace invar {

Operations::Operations(const Decoder& model, int64_t rows, Workspace& ws, Group& group,
                       const Hooks& hooks, ForwardIo& io)
    : model_(model),
      spec_(model.spec),
      shard_(model.weights->shard()),
      kernels_(model.kernels),
      rows_(rows),
      ws_(ws),
      tables_(ws.tables),
      group_(group),
      hooks_(hooks),
      times_(io.times),
      given_experts_(io.given_experts),
      tape_(io.tape),
      plan_(model, rows),
      at_once_(model.arithmetic.is_baseline ? AtOnce() : at_once(model.kernels)) {}

void Operations::embed(float* out) {
  run("embed", kernels_.embed,
      EmbedParams{.tokens = tables_.tokens,
                  .table = model_.embedding,
                  .rows = rows_,
                  .out = out,
                  .scale = spec_.embedding_scale});
  if (model_.embedding.k < spec_.hidden) gather_columns(out, model_.embedding.k);
}

// x holds the columns [T][width] of this rank; then [T][D], those of all.
void Operations::gather_columns(float* x, int64_t width) {
  float* all = ws_.partial.data();
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  timed(times_, "exchange",
        [&] { group_.all_gather(x, rows_ * static_cast<int64_t>(bytes), all, model_.execution); });
  for (int64_t r = 0; r < group_.size(); ++r)
    copy_columns({x + r * width, spec_.hidden}, {all + r * rows_ * width, width}, width, rows_);
}

// The first columns of rows that lie so many floats apart.
void Operations::copy_columns(RowsOf<float> to, RowsOf<const float> from, int64_t width,
                              int64_t rows) {
  constexpr int64_t kAlone = 16384;  // floats that one thread copies sooner than a team
  const Execution& on = model_.execution;
  if (!on.pool || rows * width < kAlone)
    return on.stream->copy_rows(to.first, to.stride * sizeof(float), from.first,
                                from.stride * sizeof(float), width * sizeof(float), rows);
  on.pool->run([&](Part part) {
    const auto [begin, end] = part.of(rows);
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(to.first + row * to.stride, from.first + row * from.stride,
                  static_cast<size_t>(width) * sizeof(float));
  });
}

void Operations::norm(const float* x, const float* weight, const Activation& out,
                      const int32_t* rows_of, int64_t rows, const float* bias) {
  if (!rows_of && rows < 0 && !bias && settle_into(x, weight, out)) return;
  settle();
  if (!weight) return round(x, spec_.hidden, out, rows_of, rows);
  if (bias)
    return run("norm", kernels_.layer_norm,
               LayerNormParams{.x = x,
                               .x_stride = spec_.hidden,
                               .rows_of = rows_of,
                               .weight = weight,
                               .bias = bias,
                               .eps = spec_.norm_eps,
                               .rows = rows < 0 ? rows_ : rows,
                               .width = spec_.hidden,
                               .out = out});
  run("norm", kernels_.rms_norm, norm_of(x, weight, out, rows_of, rows));
}

void Operations::norm_before(const Matrix& w, const float* x, const float* weight,
                             const Activation& out, const float* bias) {
  const bool joins = at_once_.norms_row && rows_ == 1 && weight && !bias && !tape_ &&
                     !hooks_.wants_hidden() && std::holds_alternative<std::monostate>(waiting_) &&
                     at_once_.norms_row(w, model_.execution);
  if (!joins) return norm(x, weight, out, nullptr, -1, bias);
  late_norm_ = norm_of(x, weight, out, nullptr, -1);
}

std::optional<RmsNormParams> Operations::late_norm(const Activation& x) {
  if (!late_norm_) return std::nullopt;
  CHECK(late_norm_->out.data == x.data, "a norm is read by the product after it");
  return std::exchange(late_norm_, std::nullopt);
}

RmsNormParams Operations::norm_of(const float* x, const float* weight, const Activation& out,
                                  const int32_t* rows_of, int64_t rows) const {
  return {.x = x,
          .x_stride = spec_.hidden,
          .rows_of = rows_of,
          .weight = weight,
          .eps = spec_.norm_eps,
          .rows = rows < 0 ? rows_ : rows,
          .width = spec_.hidden,
          .out = out};
}

Activation Operations::factor(const Activation& x, const Matrix& w, int64_t rows, int split_k) {
  if (!is_quantised(w.type)) return x;
  const bool is_int8 = w.type == DType::i8;
  if (is_int8 && kernels_.makes_integers && kernels_.makes_integers(w, rows, split_k)) return x;
  Activation out = ws_.quantised;
  out.type = w.type;
  out.stride = int8_stride(w.k, kernels_.weights);
  run("quantise", is_int8 ? kernels_.quantise : kernels_.quantise_fp8,
      QuantiseParams{.x = x, .rows = rows, .width = w.k, .split_k = split_k, .out = out});
  return out;
}

void Operations::run_product(const char* name, MatmulParams params) {
  if (const auto norm = late_norm(params.x))
    return run(name, at_once_.normed_matmul, NormedMatmulParams{*norm, params});
  params.x = factor(params.x, params.w, params.rows, params.split_k);
  run(name,
      params.w.type == DType::i8     ? kernels_.int8_matmul
      : params.w.type == DType::e4m3 ? kernels_.fp8_matmul
                                     : kernels_.matmul,
      params);
}

void Operations::product(const char* name, const Activation& x, const Matrix& w, const float* bias,
                         int64_t rows, float* y, int64_t y_stride, const Matrix* next) {
  run_product(name, {.x = x,
                     .w = w,
                     .rows = rows,
                     .split_k = plan_.split_k(1, w.k),
                     .bias = bias,
                     .accumulate = false,
                     .y = y,
                     .y_stride = y_stride,
                     .scratch = ws_.blocks_scratch.data(),
                     .next = next});
}

void Operations::round(const float* x, int64_t width, const Activation& out, const int32_t* rows_of,
                       int64_t rows) {
  if (x == ws_.hidden.data()) settle();
  run("round", kernels_.round,
      RoundParams{.x = x,
                  .x_stride = width,
                  .rows_of = rows_of,
                  .rows = rows < 0 ? rows_ : rows,
                  .width = width,
                  .out = out});
}

bool Operations::settle_into(const float* x, const float* weight, const Activation& out) {
  if (x != ws_.hidden.data()) return false;
  if (auto* sum = std::get_if<AddNormParams>(&waiting_)) {
    sum->next = weight;
    sum->out = out;
  } else if (auto* sum = std::get_if<CombineNormParams>(&waiting_);
             sum && !would_overwrite(sum->sum, out, rows_ * out.stride * size_of(out.type))) {
    sum->next = weight;
    sum->out = out;
  } else {
    return false;
  }
  settle();
  return true;
}

void Operations::settle() {
  const auto waiting = std::exchange(waiting_, std::monostate());
  if (const auto* sum = std::get_if<AddNormParams>(&waiting))
    run("add, norm", kernels_.add_norm, *sum);
  else if (const auto* sum = std::get_if<CombineNormParams>(&waiting))
    run("combine, norm", kernels_.combine_norm, *sum);
}

void Operations::add_silu(const float* x) {
  settle();
  run("add", kernels_.add_silu,
      AddSiluParams{.x = x, .count = rows_ * spec_.hidden, .y = ws_.hidden.data()});
}

void Operations::add_product(const char* name, const Activation& x, const Matrix& w, int split_k,
                             const float* bias, const float* norm_weight, const Matrix* next,
                             float* kept) {
  settle();
  const bool alone = group_.size() == 1;
  const bool at_once = alone && !norm_weight && spec_.residual_scale == 1;
  const int64_t stride = norm_weight ? round_up(spec_.hidden, kLeafPad) : spec_.hidden;
  float *hidden = ws_.hidden.data(), *partial = ws_.partial.data();
  float* product = kept ? kept : partial;
  const int64_t product_stride = kept ? spec_.hidden : stride;
  run_product(name, {.x = x,
                     .w = w,
                     .rows = rows_,
                     .split_k = plan_.split_k(split_k, w.k),
                     .bias = at_once ? bias : nullptr,
                     .accumulate = at_once,
                     .y = at_once ? hidden : product,
                     .y_stride = at_once ? spec_.hidden : product_stride,
                     .scratch = ws_.blocks_scratch.data(),
                     .next = next});
  if (!alone)
    timed(times_, "exchange",
          [&] { group_.tree_all_reduce(partial, rows_ * stride, model_.execution); });
  const AddNormParams sum{.x = partial,
                          .x_stride = stride,
                          .bias = bias,
                          .norm = norm_weight,
                          .eps = spec_.norm_eps,
                          .rows = rows_,
                          .width = spec_.hidden,
                          .y = hidden,
                          .scale = spec_.residual_scale,
                          .next = nullptr,
                          .out = {}};
  if (!at_once && !kept && kernels_.add_norm && !model_.arithmetic.is_baseline) {
    waiting_ = sum;
    if (hooks_.wants_hidden()) settle();
    return;
  }
  if (norm_weight)
    run("norm", kernels_.rms_norm,
        RmsNormParams{.x = product,
                      .x_stride = product_stride,
                      .rows_of = nullptr,
                      .weight = norm_weight,
                      .eps = spec_.norm_eps,
                      .rows = rows_,
                      .width = spec_.hidden,
                      .out = {partial, DType::f32, stride}});
  if (!at_once)
    run("add", kernels_.add,
        AddParams{.x = partial,
                  .x_stride = stride,
                  .bias = bias,
                  .rows = rows_,
                  .width = spec_.hidden,
                  .y = hidden,
                  .scale = spec_.residual_scale});
  round_residual();
}

void Operations::gated_product(const LayerPass& p, const Matrix* next) {
  const auto norm = late_norm(p.at.ffn_normed);
  const GatedMatmulParams params{
      .x = norm ? p.at.ffn_normed : factor(p.at.ffn_normed, p.w.gate_up, rows_, 1),
      .gate_up = p.w.gate_up,
      .rows = rows_,
      .gate_bias = p.w.gate_bias,
      .up_bias = p.w.up_bias,
      .out = p.at.gated,
      .scratch = ws_.blocks_scratch.data(),
      .next = next,
      .curve = p.spec.ffn.curve};
  if (norm)
    run("gated", at_once_.normed_gated_matmul, NormedGatedMatmulParams{*norm, params});
  else if (is_quantised(p.w.gate_up.type))
    run("gated",
        p.w.gate_up.type == DType::i8 ? kernels_.int8_gated_matmul : kernels_.fp8_gated_matmul,
        params);
  else if (tape_)
    run("gated", tape_->kernels().gated_matmul, KeptGatedMatmulParams{params, p.at.gate_up});
  else
    run("gated", kernels_.gated_matmul, params);
}

void Operations::curved_product(const LayerPass& p, const Matrix* next) {
  const int64_t width = p.shard.ffn(p.spec);
  product("up", p.at.ffn_normed, p.w.gate_up, p.w.up_bias, rows_, p.at.gate_up, width, next);
  run("curve", kernels_.curve,
      CurveParams{.x = p.at.gate_up,
                  .x_stride = width,
                  .rows = rows_,
                  .width = width,
                  .curve = p.spec.ffn.curve,
                  .out = p.at.gated});
}

// A tape does not keep a product that nothing but the rotation follows; joint norms overwrite it.
float* Operations::products(const LayerPass& p) const {
  return p.at.qkv && !spec_.joint_qk_norm ? p.at.qkv
                                          : ws_.layers[static_cast<size_t>(p.layer)].products;
}

QkvParams Operations::rotation_of(const LayerPass& p) const {
  const RopeTable& rope = spec_.late_qk_norm ? model_.ropes.still() : model_.ropes.of(p.layer);
  const bool by_heads = !spec_.joint_qk_norm;  // else they are normed before
  return {.qkv = products(p),
          .qkv_stride = int64_t{shard_.heads + 2 * shard_.kv_heads} * spec_.head_dim,
          .rows = rows_,
          .heads = shard_.heads,
          .q_norm = by_heads ? p.w.q_norm : nullptr,
          .k_norm = by_heads ? p.w.k_norm : nullptr,
          .norm_eps = spec_.norm_eps,
          .positions = tables_.positions,
          .cos = rope.cos(),
          .sin = rope.sin(),
          .write_begin = tables_.write_begin,
          .write_block = tables_.write_block,
          .write_slot = tables_.write_slot,
          .kv = p.kv,
          .q = p.at.q,
          .non_finite = ws_.non_finite.data()};
}

bool Operations::attention_rotates(const LayerPass& p) const {
  return kernels_.rotated_attention && tables_.rows_are_apart && !tape_ && !p.kv.stored.data &&
         !p.spec.attention.latent && !hooks_.wants_qkv(p.at);
}

void Operations::qkv(const LayerPass& p) {
  const QkvParams rotation = rotation_of(p);
  if (plan_.goes_by_heads() && !hooks_.wants_qkv(p.at)) {
    run("qkv", kernels_.qkv_product,
        QkvProductParams{.x = factor(p.at.normed, p.w.qkv, rows_, 1),
                         .w = p.w.qkv,
                         .bias = p.w.qkv_bias,
                         .then = rotation,
                         .scratch = products(p)});
    return store_slots(p);
  }
  product("qkv", p.at.normed, p.w.qkv, p.w.qkv_bias, rows_, products(p), rotation.qkv_stride,
          plan_.after_qkv(p.layer));
  hooks_.trace("qkv", p.layer, products(p), rotation.qkv_stride, rows_);
  if (spec_.joint_qk_norm) norm_joint_heads(p);
  if (spec_.late_qk_norm) rotate_heads(p);
  if (!attention_rotates(p)) run("rope", kernels_.qkv, rotation);
  store_slots(p);
}

// Every row reads what is stored, its own key and value too.
void Operations::store_slots(const LayerPass& p) {
  if (!p.kv.stored.data) return;
  run("store", kernels_.store_slots,
      StoreSlotsParams{.kv = p.kv,
                       .rows = rows_,
                       .write_begin = tables_.write_begin,
                       .write_block = tables_.write_block,
                       .write_slot = tables_.write_slot});
  run("load", kernels_.load_slots,
      LoadSlotsParams{.kv = p.kv,
                      .rows = rows_,
                      .window = p.spec.attention.window,
                      .positions = tables_.positions,
                      .table_of = tables_.table_of,
                      .tables = tables_.tables});
}

// The queries of a row are one vector of the norm, its keys another one.
void Operations::norm_joint_heads(const LayerPass& p) {
  const int64_t stride = int64_t{shard_.heads + 2 * shard_.kv_heads} * spec_.head_dim;
  if (p.at.qkv) std::copy_n(products(p), rows_ * stride, p.at.qkv);  // for the backward
  const auto norm_part = [&](float* x, int64_t width, const float* weight) {
    run("norm", kernels_.rms_norm,
        RmsNormParams{.x = x,
                      .x_stride = stride,
                      .rows_of = nullptr,
                      .weight = weight,
                      .eps = spec_.norm_eps,
                      .rows = rows_,
                      .width = width,
                      .out = {x, DType::f32, stride},
                      .keeps_pad = true});
  };
  norm_part(products(p), spec_.query_width(), p.w.q_norm);
  norm_part(products(p) + spec_.query_width(), spec_.kv_width(), p.w.k_norm);
}

// Queries and keys, before their norms.
void Operations::rotate_heads(const LayerPass& p) {
  const RopeTable& rope = model_.ropes.of(p.layer);
  run("rope", kernels_.rotate_heads,
      RotateHeadsParams{.x = products(p),
                        .x_stride = int64_t{shard_.heads + 2 * shard_.kv_heads} * spec_.head_dim,
                        .rows = rows_,
                        .heads = shard_.heads + shard_.kv_heads,
                        .head_dim = spec_.head_dim,
                        .positions = tables_.positions,
                        .cos = rope.cos(),
                        .sin = rope.sin()});
}

void Operations::attention(const LayerPass& p) {
  const AttentionParams params{.q = p.at.q,
                               .rows = rows_,
                               .heads = shard_.heads,
                               .positions = tables_.positions,
                               .table_of = tables_.table_of,
                               .tables = tables_.tables,
                               .window = p.spec.attention.window,
                               .kv = p.kv,
                               .out = p.at.attended,
                               .scratch = ws_.attention_scratch.data(),
                               .fewest_rows = tables_.fewest_rows,
                               .most_rows = tables_.most_rows,
                               .few_rows = tables_.few_rows,
                               .rows_are_even = tables_.rows_are_even,
                               .shared = tables_.shared,
                               .shared_splits = tables_.shared_splits,
                               .num_shared = tables_.num_shared,
                               .score_scale = p.spec.attention.score_scale,
                               .score_cap = p.spec.attention.score_cap,
                               .sinks = p.w.sinks};
  timed(times_, "attention", [&] {
    if (model_.arithmetic.is_baseline && model_.device().is_host())
      ws_.baseline.run(model_, params);
    else if (tape_)
      model_.run(kernels_.partial_attention,
                 PartialAttentionParams{.of = params, .max = p.at.max, .sum = p.at.sum});
    else if (attention_rotates(p))
      model_.run(tables_.contexts_are_short && at_once_.short_attention
                     ? at_once_.short_attention
                     : kernels_.rotated_attention,
                 RotatedAttentionParams{.rotation = rotation_of(p), .of = params});
    else
      model_.run(kernels_.attention, params);
  });
}

void Operations::copy_slots(const KvLayer& kv) {
  if (tables_.num_copies > 0)
    run("copy_slots", kv.stored.data ? kernels_.copy_stored : kernels_.copy_slots,
        CopySlotsParams{kv, tables_.copies, tables_.num_copies});
}

void Operations::scale_logits(int64_t count) {
  if (spec_.logits_divisor == 1 && spec_.logits_cap == 0) return;
  run("scale logits", kernels_.scale_logits,
      ScaleLogitsParams{.x = ws_.logits.data(),
                        .rows = count,
                        .stride = spec_.vocab,
                        .width = spec_.vocab,
                        .divisor = spec_.logits_divisor,
                        .cap = spec_.logits_cap});
}

void Operations::gather_logits(const float* mine, int64_t count) {
  const int64_t piece = count * shard_.vocab_stride;
  float* all = ws_.rank_logits.data() + piece;
  const Execution& on = model_.execution;
  timed(times_, "exchange",
        [&] { group_.all_gather(mine, piece * static_cast<int64_t>(sizeof(float)), all, on); });
  for (int64_t r = 0; r < group_.size(); ++r) {
    const int64_t begin = r * shard_.vocab_stride;
    const int64_t width = std::min<int64_t>(shard_.vocab_stride, spec_.vocab - begin);
    if (width <= 0) break;
    copy_columns({ws_.logits.data() + begin, spec_.vocab}, {all + r * piece, shard_.vocab_stride},
                 width, count);
  }
}

void Operations::round_residual() {
  if (model_.arithmetic.is_baseline)
    run("round", kernels_.round_in_place,
        RoundInPlaceParams{ws_.hidden.data(), rows_ * spec_.hidden});
}

}  // namespace invar
