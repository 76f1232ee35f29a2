#include "model/operations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "model/step_graphs.h"

namespace invar {

Operations::Operations(const Decoder& model, int64_t rows, Workspace& ws, Group& group,
                       const Hooks& hooks, ForwardIo& io)
    : model_(model),
      on_(model.execution),
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
      at_once_(model.arithmetic.is_baseline ? AtOnce() : invar::at_once(model.kernels)) {}

Operations::~Operations() {
  try {
    join();
  } catch (const std::exception&) {  // what failed before is being thrown
  }
}

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
    copy_columns({x + r * width, spec_.hidden}, {all + r * rows_ * width, width}, width);
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
  if (!joins_norm(w, weight, bias)) return norm(x, weight, out, nullptr, -1, bias);
  late_norm_ = norm_of(x, weight, out, nullptr, -1);
}

bool Operations::joins_norm(const Matrix& w, const float* weight, const float* bias) const {
  return at_once_.norms_row && rows_ == 1 && weight && !bias && !tape_ && !is_adapted(w) &&
         !hooks_.wants_hidden() && is_settled() && at_once_.norms_row(w, model_.execution);
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

void Operations::norm_part(const float* x, int64_t stride, int64_t width, const float* weight,
                           const Activation& out, bool keeps_pad) {
  run("norm", kernels_.rms_norm,
      RmsNormParams{.x = x,
                    .x_stride = stride,
                    .rows_of = nullptr,
                    .weight = weight,
                    .eps = spec_.norm_eps,
                    .rows = rows_,
                    .width = width,
                    .out = out,
                    .keeps_pad = keeps_pad});
}

void Operations::round_part(const float* x, int64_t stride, int64_t width, const Activation& out) {
  run("round", kernels_.round,
      RoundParams{.x = x,
                  .x_stride = stride,
                  .rows_of = nullptr,
                  .rows = rows_,
                  .width = width,
                  .out = out});
}

bool Operations::would_overwrite(const CombineParams& sum, const Activation& out, int64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(out.data);
  const auto is_inside = [&](const void* data) {
    const auto* at = static_cast<const std::byte*>(data);
    return begin <= at && at < begin + bytes;
  };
  const auto* y = static_cast<const std::byte*>(sum.y.data);
  const int64_t of_y = sum.rows * sum.chosen * sum.y.stride * size_of(sum.y.type);
  return is_inside(y) || (y <= begin && begin < y + of_y) || is_inside(sum.place) ||
         is_inside(sum.weights) || is_inside(sum.shared) || is_inside(sum.gate);
}

void Operations::add_combined(const CombineParams& sum) {
  settle();
  if (kernels_.combine_norm && !model_.arithmetic.is_baseline) {
    waiting_ = CombineNormParams{.sum = sum, .next = nullptr, .eps = spec_.norm_eps, .out = {}};
    if (hooks_.wants_hidden()) settle();
    return;
  }
  run("combine", kernels_.combine, sum);
  round_residual();
}

// The experts that all rows are to go through in that layer, or null.
const int32_t* Operations::given_experts(int layer) const {
  if (given_experts_.empty() || layer >= spec_.layers) return nullptr;
  int64_t before = 0;
  for (int i = 0; i < layer; ++i)
    before += spec_.layer_specs[static_cast<size_t>(i)].chosen_experts();
  return given_experts_.data() + before * rows_;
}

void Operations::all_gather(const void* mine, int64_t bytes, void* all) {
  timed(times_, "exchange", [&] { group_.all_gather(mine, bytes, all, model_.execution); });
}

void Operations::baseline_attention(const char* name, const AttentionParams& params) {
  timed(times_, name, [&] { ws_.baseline.run(model_, params); });
}

bool Operations::may_fork(std::initializer_list<const Matrix*> matrices) const {
  return ws_.branch && rows_ <= StepGraphs::kMostRows && group_.size() == 1 &&
         !model_.arithmetic.is_baseline && std::ranges::all_of(matrices, [&](const Matrix* w) {
           return w->type == DType::bf16 && !is_adapted(*w);
         });
}

void Operations::fork(FunctionRef<void()> work) {
  CHECK(!has_forked_, "one branch at a time");
  on_ = ws_.branch.fork(model_.execution);
  has_forked_ = true;
  work();
  on_ = model_.execution;
}

void Operations::join() {
  if (std::exchange(has_forked_, false)) ws_.branch.join(model_.execution);
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
    invar::copy_columns(on, {ws_.logits.data() + begin, spec_.vocab},
                        {all + r * piece, shard_.vocab_stride}, width, count);
  }
}

void Operations::round_residual() {
  if (model_.arithmetic.is_baseline)
    run("round", kernels_.round_in_place,
        RoundInPlaceParams{ws_.hidden.data(), rows_ * spec_.hidden});
}

}  // namespace invar
