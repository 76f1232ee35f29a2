// The operations of one forward, each on the whole team and by the name that traces and times show.
// Which kernels compute them, and in which way, is decided here and by the product plan.
#pragma once

#include <optional>
#include <variant>

#include "collectives/group.h"
#include "kernels/at_once.h"
#include "model/hooks.h"
#include "model/product_plan.h"

namespace invar {

struct LayerPass;

class Operations {
 public:
  Operations(const Decoder& model, int64_t rows, Workspace& ws, Group& group, const Hooks& hooks,
             ForwardIo& io);

  // out = rows of the embedding
  void embed(float* out);
  // out = RMSNorm(x), or with a bias LayerNorm(x), of the rows `rows_of` or all; without a weight
  // out = x
  void norm(const float* x, const float* weight, const Activation& out,
            const int32_t* rows_of = nullptr, int64_t rows = -1, const float* bias = nullptr);
  // The same of all rows where the product with w, and nothing else, reads `out`: of one row it may
  // become part of that product.
  void norm_before(const Matrix& w, const float* x, const float* weight, const Activation& out,
                   const float* bias);
  // y = x * w (+ bias), column-parallel (numerics 2)
  void product(const char* name, const Activation& x, const Matrix& w, const float* bias,
               int64_t rows, float* y, int64_t y_stride, const Matrix* next = nullptr);
  // out = x in the weights' type
  void round(const float* x, int64_t width, const Activation& out, const int32_t* rows_of = nullptr,
             int64_t rows = -1);
  // What add_product left to be added to h, now: whoever reads h otherwise than by norm or round
  // asks for it.
  void settle();
  // h = h + silu(x)
  void add_silu(const float* x);
  // h = h + (x * w (+ bias)) (* the spec's scale), the inner size shared out over the ranks:
  // row-parallel. With a norm behind it (or null): h = h + norm(x * w). The sum may wait for the
  // norm of h that the next product reads, to be one pass with it. `kept` gets x * w where a
  // backward wants it.
  void add_product(const char* name, const Activation& x, const Matrix& w, int split_k,
                   const float* bias, const float* norm, const Matrix* next, float* kept = nullptr);
  // out = curve(gate(x)) * up(x)
  void gated_product(const LayerPass& p, const Matrix* next);
  // The same of the expert that every row goes through.
  void shared_gated_product(const LayerPass& p);
  // The norm, or the rounding, of a part of each row.
  void norm_part(const float* x, int64_t stride, int64_t width, const float* weight,
                 const Activation& out, bool keeps_pad = false);
  void round_part(const float* x, int64_t stride, int64_t width, const Activation& out);
  // y[t][h] = x[t][h] * w[h]; a head's x begins `x_step` elements after the one before it.
  void heads_product(const char* name, const Activation& x, int64_t x_step, const Matrix& w,
                     float* y);
  // Queries, and latents in their slots.
  void latent_qkv(const LayerPass& p, const float* turning_queries, int64_t turning_stride);
  // The norm before the experts, which of them each row goes through, and the rows that those here
  // read, expert by expert.
  void route(const LayerPass& p);
  // Every expert's outputs where all ranks' are read: p.at.expert_outputs, or expert_sent.
  Activation expert_outputs(const LayerPass& p);
  // What the expert that every row goes through adds, of all ranks, before its gate.
  void shared_output(const LayerPass& p);
  // h = h + the sum of its experts' outputs
  void combine(const LayerPass& p, const Activation& outputs);
  // out = curve(up(x))
  void curved_product(const LayerPass& p, const Matrix* next);
  // Rotated queries from the layer's normed input; keys and values in their slots. Where attention
  // rotates, only the product.
  void qkv(const LayerPass& p);
  void attention(const LayerPass& p);
  void copy_slots(const KvLayer& kv);
  // Logits as the spec scales and caps them.
  void scale_logits(int64_t count);
  void gather_columns(float* x, int64_t width);
  // Whole rows of logits from this rank's columns of them.
  void gather_logits(const float* mine, int64_t count);
  // The residual stream is f32; the baseline's is bf16.
  void round_residual();

  const ProductPlan& plan() const { return plan_; }

 private:
  // Rows of a matrix in memory.
  template <typename T>
  struct RowsOf {
    T* first;
    int64_t stride;
  };
  void copy_columns(RowsOf<float> to, RowsOf<const float> from, int64_t width, int64_t rows);
  // What a product with `w` multiplies: x, or where w is integers those of x.
  Activation factor(const Activation& x, const Matrix& w, int64_t rows, int split_k);
  RmsNormParams norm_of(const float* x, const float* weight, const Activation& out,
                        const int32_t* rows_of = nullptr, int64_t rows = -1) const;
  MatmulParams router_of(const LayerPass& p) const;
  bool goes_at_once(const LayerPass& p) const;
  // A plain product by the kernel for its types.
  void run_product(const char* name, MatmulParams params);
  template <typename Params>
  void run(const char* name, Operation<Params> operation, const Params& params) {
    timed(times_, name, [&] { model_.run(operation, params); });
  }
  // Whether an array that the sum reads begins inside of where its norm would go.
  static bool would_overwrite(const CombineParams& sum, const Activation& out, int64_t bytes);
  const int32_t* given_experts(int layer) const;
  Activation gather_experts(const LayerPass& p);
  void store_slots(const LayerPass& p);
  QkvParams rotation_of(const LayerPass& p) const;
  float* products(const LayerPass& p) const;
  void norm_joint_heads(const LayerPass& p);
  void rotate_heads(const LayerPass& p);
  bool attention_rotates(const LayerPass& p) const;
  // The norm that waits for the product of x.
  std::optional<RmsNormParams> late_norm(const Activation& x);
  // Whether x is h with a sum that waits, which then is one pass with out = norm(x).
  bool settle_into(const float* x, const float* weight, const Activation& out);

  const Decoder& model_;
  const DecoderSpec& spec_;
  const Shard& shard_;
  const Kernels& kernels_;
  const int64_t rows_;
  Workspace& ws_;
  const StepTables& tables_;
  Group& group_;
  const Hooks& hooks_;
  OperationTimes* times_;
  const std::span<const int32_t> given_experts_;
  const Tape* tape_;
  const ProductPlan plan_;
  const AtOnce at_once_;
  // What is to be added to h: a product, or what a row's experts made.
  std::variant<std::monostate, AddNormParams, CombineNormParams> waiting_;
  std::optional<RmsNormParams> late_norm_;
};

}  // namespace invar
