// The operations of one forward, each on the whole team and by the name that traces and times show.
// Which kernels compute them, and in which way, is decided here. A part that has operations of its
// own runs its kernels by run().
#pragma once

#include <optional>
#include <variant>

#include "collectives/group.h"
#include "kernels/adapters.h"
#include "kernels/at_once.h"
#include "kernels/pack.h"
#include "model/copy_columns.h"
#include "model/hooks.h"

namespace invar {

class Operations {
 public:
  Operations(const Decoder& model, int64_t rows, Workspace& ws, Group& group, const Hooks& hooks,
             ForwardIo& io);
  // A branch is joined where a step fails before that, too: the next step uses its memory.
  ~Operations();
  Operations(const Operations&) = delete;

  // out = rows of the embedding
  void embed(float* out);
  // Makes the vectors that tokens, whose embeddings are h, bring to each layer (numerics 4.5).
  void make_layer_inputs();
  // out = RMSNorm(x), or with a bias LayerNorm(x), of the rows `rows_of` or all; without a weight
  // out = x
  void norm(const float* x, const float* weight, const Activation& out,
            const int32_t* rows_of = nullptr, int64_t rows = -1, const float* bias = nullptr);
  // The same of all rows where the product with w, and nothing else, reads `out`: of one row it may
  // become part of that product.
  void norm_before(const Matrix& w, const float* x, const float* weight, const Activation& out,
                   const float* bias);
  // Whether it does.
  bool joins_norm(const Matrix& w, const float* weight, const float* bias = nullptr) const;
  RmsNormParams norm_of(const float* x, const float* weight, const Activation& out,
                        const int32_t* rows_of = nullptr, int64_t rows = -1) const;
  // The norm, or the rounding, of columns of each row.
  void norm_part(const float* x, int64_t stride, int64_t width, const float* weight,
                 const Activation& out, bool keeps_pad = false);
  void round_part(const float* x, int64_t stride, int64_t width, const Activation& out);
  // out = x in the weights' type
  void round(const float* x, int64_t width, const Activation& out, const int32_t* rows_of = nullptr,
             int64_t rows = -1);

  // y = x * w (+ bias), column-parallel (numerics 2)
  void product(const char* name, const Activation& x, const Matrix& w, const float* bias,
               int64_t rows, float* y, int64_t y_stride, const Matrix* next = nullptr);
  // A product by the kernel for its types, without adapters.
  void run_product(const char* name, MatmulParams params);
  // Whether adapters of some rows add to the product of w.
  bool is_adapted(const Matrix& w) const { return ws_.adapters.is_beside(w); }
  // y = y + what adapters add to the products of experts, on a host: `stack` has an expert's
  // matrix, or with a `size` of 2 its gated pair, at each place. See
  // AdapterStep::params_of_experts.
  struct ExpertRows {
    const int32_t *begin, *rows_of;
  };
  void add_adapted(const Activation& x, const Matrix& stack, int64_t size, ExpertRows rows,
                   float* y, int64_t y_stride);
  // Room for the products of gated pairs, of so many columns.
  float* pair_products(int64_t rows, int64_t columns) {
    return ws_.adapters.pair_products(model_, rows, columns);
  }
  // out = curve(gate(x)) * up(x). A tape keeps both products in `dots`.
  void gated_product(const char* name, GatedMatmulParams params, float* dots = nullptr);
  // y[t][h] = x[t][h] * w[h]; a head's x begins `x_step` elements after the one before it.
  void heads_product(const char* name, const Activation& x, int64_t x_step, const Matrix& w,
                     float* y);
  // y = x * w, the inner size shared out over the ranks: row-parallel. Adapters add to it where
  // there may be some of w.
  void partial_product(const char* name, const Activation& x, const Matrix& w, int split_k,
                       float* y, int64_t y_stride, bool takes_adapters = false);
  // h = h + (x * w (+ bias)) (* the spec's scale), row-parallel. With a norm behind it (or null):
  // h = h + norm(x * w). The sum may wait for the norm of h that the next product reads, to be one
  // pass with it. `kept` gets x * w where a backward wants it.
  void add_product(const char* name, const Activation& x, const Matrix& w, int split_k,
                   const float* bias, const float* norm, const Matrix* next, float* kept = nullptr);
  // h = h + the sum of a row's experts; may wait likewise.
  void add_combined(const CombineParams& sum);
  // h = h + silu(x)
  void add_silu(const float* x);
  // h = h + norm(x) of what every rank has whole; x may be overwritten.
  void add_normed(float* x, int64_t stride, const float* norm);
  // h = h * by[0]
  void scale_stream(const float* by);
  // What add_product left to be added to h, now: whoever reads h otherwise than by norm or round
  // asks for it.
  void settle();
  bool is_settled() const { return std::holds_alternative<std::monostate>(waiting_); }

  // Logits as the spec scales and caps them.
  void scale_logits(int64_t count);
  void gather_columns(float* x, int64_t width);
  // Whole rows of logits from this rank's columns of them.
  void gather_logits(const float* mine, int64_t count);
  // The residual stream is f32; the baseline's is bf16.
  void round_residual();

  // ---- Work beside other work
  // Whether products with these matrices may be done beside others: of few rows, which leave a GPU
  // idle, by one rank, and where they use no memory that others use, too.
  bool may_fork(std::initializer_list<const Matrix*> matrices) const;
  // `work` begins when all before it is done, and may be done beside what follows until join().
  // Nothing else writes what it reads, nor touches what it writes, before that.
  void fork(FunctionRef<void()> work);
  void join();

  // ---- For parts with operations of their own
  template <typename Params>
  void run(const char* name, Operation<Params> operation, const Params& params) {
    timed(times_, name, [&] { on_.run(operation, params); });
  }
  const Kernels& kernels() const { return kernels_; }
  const AtOnce& at_once() const { return at_once_; }
  const Arithmetic& arithmetic() const { return model_.arithmetic; }
  const StepTables& tables() const { return tables_; }
  const RopeTables& ropes() const { return model_.ropes; }
  const Tape* tape() const { return tape_; }
  Stream& stream() const { return *model_.execution.stream; }
  // The first columns of all rows.
  void copy_columns(RowsOf<float> to, RowsOf<const float> from, int64_t width) {
    invar::copy_columns(model_.execution, to, from, width, rows_);
  }
  int team() const { return model_.execution.team(); }
  bool* non_finite() const { return ws_.non_finite.data(); }
  std::byte* attention_scratch() const { return ws_.attention_scratch.data(); }
  std::byte* blocks_scratch() const { return ws_.blocks_scratch.data(); }
  // [T][D], where a network leaves what another one beside it adds to.
  float* beside() const { return ws_.beside.data(); }
  const ChosenSlots& chosen_slots() const { return ws_.chosen; }
  // The vectors that tokens bring to a layer: [T][stride].
  const float* layer_inputs(int layer) const;
  int64_t layer_inputs_stride() const;
  // The experts that all rows are to go through in that layer, or null.
  const int32_t* given_experts(int layer) const;
  // Into how many runs a product's inner size is cut: `defined` by the arithmetic (numerics 2),
  // unless this is the baseline.
  int split_k(int defined, int64_t k) const;
  // What a product with `w` multiplies: x, or where w is integers or e4m3 numbers those of x.
  Activation factor(const Activation& x, const Matrix& w, int64_t rows, int split_k);
  void all_gather(const void* mine, int64_t bytes, void* all);
  bool is_on_host() const { return model_.device().is_host(); }
  // The baseline on a CPU computes some lines of a layer its own way (numerics 10).
  bool is_host_baseline() const { return model_.arithmetic.is_baseline && is_on_host(); }
  void baseline_attention(const char* name, const AttentionParams& params);

 private:
  // The sum that ends a row-parallel product, which stands in `product` where a norm is to follow.
  void add_now(const AddNormParams& sum, const float* product, int64_t product_stride);
  // y = y + what the adapters of its rows add to the product of x and w (numerics 2.4), whose
  // inner size ranks may share out: A before that product, beside which a GPU computes it, B
  // behind it.
  AdapterParams shrink(const Activation& x, const Matrix& w, int split_k, bool is_shared);
  void expand(AdapterParams params, bool is_shared, float* y, int64_t y_stride);
  void add_bias(float* x, int64_t x_stride, const float* bias, int64_t width, PackPlace place = {});
  // A tape's memory for the products, or null.
  void adapted_gated_product(const char* name, const GatedMatmulParams& params, float* kept);
  // Whether an array that the sum reads begins inside of where its norm would go.
  static bool would_overwrite(const CombineParams& sum, const Activation& out, int64_t bytes);
  // The norm that waits for the product of x.
  std::optional<RmsNormParams> late_norm(const Activation& x);
  // Whether x is h with a sum that waits, which then is one pass with out = norm(x).
  bool settle_into(const float* x, const float* weight, const Activation& out);

  const Decoder& model_;
  Execution on_;  // the model's, or its branch
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
  const AtOnce at_once_;
  // What is to be added to h: a product, or what a row's experts made.
  std::variant<std::monostate, AddNormParams, CombineNormParams> waiting_;
  std::optional<RmsNormParams> late_norm_;
  bool has_forked_ = false;
};

}  // namespace invar
