#include "model/forward.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/control.h"
#include "model/step_tables.h"

namespace invar {

// One step. T rows, D model width, H query heads, G key/value heads, E head size, F ffn width, V
// vocabulary; heads, F and V are this rank's share.
class ForwardPass {
 public:
  ForwardPass(Decoder& decoder, const Batch& batch, KvStorage& kv, Workspace& ws, Group& group,
              ForwardIo& io)
      : model_(decoder),
        spec_(decoder.spec),
        shard_(decoder.weights->shard()),
        batch_(batch),
        kv_(kv),
        ws_(ws),
        group_(group),
        io_(io),
        on_(decoder.execution),
        kernels_(decoder.kernels),
        rows_(static_cast<int64_t>(batch.rows.size())) {}

  void run() {
    const int end = batch_.layer_end < 0 ? spec_.layers : batch_.layer_end;
    CHECK(rows_ <= ws_.max_rows() && std::ssize(batch_.logit_rows) <= ws_.max_logit_rows(),
          "a batch larger than its workspace");
    is_mtp_ = spec_.mtp_layers > 0 && end > spec_.layers;
    CHECK(0 <= batch_.layer_begin && batch_.layer_begin <= end &&
              end <= (batch_.layer_begin == spec_.layers ? spec_.all_layers() : spec_.layers),
          "layer range");
    io_.logits = {};
    if (batch_.layer_begin == 0) io_.taps = {};
    prepare();
    if (rows_ == 0) return;
    if (batch_.layer_begin == 0)
      embed();
    else
      load_hidden();
    if (is_mtp_) join_tokens();
    for (int layer = batch_.layer_begin; layer < end; ++layer) {
      at_ = io_.tape ? io_.tape->layer(layer) : shared_;
      attention_block(layer);
      ffn_block(layer);
      tap(layer);
    }
    if (end >= spec_.layers)
      head();
    else
      store_hidden();
    collect_failures();
  }

 private:
  // One operation on the whole team.
  template <typename Params>
  void run(const char* name, Operation<Params> operation, const Params& params) {
    timed(name, [&] { model_.run(operation, params); });
  }
  template <typename Work>
  void timed(const char* name, Work work) {
    invar::timed(io_.times, name, work);
  }

  void prepare() {
    int positions = 0;
    for (const BatchRow& row : batch_.rows) positions = std::max(positions, row.position + 1);
    model_.rope.fill(positions, on_);
    tables_ = ws_.tables_.build(batch_, kv_.page_places(), on_);
    shared_ = {.normed = activation(ws_.normed_, spec_.hidden),
               .q = ws_.q_.data(),
               .attended = activation(ws_.attended_, int64_t{shard_.heads} * spec_.head_dim),
               .ffn_normed = activation(ws_.normed_, spec_.hidden),
               .gated = activation(ws_.gated_, shard_.ffn)};
    if (io_.tape)
      CHECK(rows_ <= io_.tape->max_rows() && std::ssize(batch_.logit_rows) == rows_,
            "a tape keeps whole batches");
    // Later stages of one step add to the first one's findings.
    if (batch_.layer_begin == 0) on_.stream->clear(ws_.non_finite_.data(), rows_ * sizeof(bool));
  }

  // h = rows of the embedding
  void embed() {
    embed_to(hidden());
    trace("embed", -1, hidden(), spec_.hidden, rows_);
  }
  void embed_to(float* out) {
    run("embed", kernels_.embed,
        EmbedParams{.tokens = tables_.tokens,
                    .table = model_.weights->embedding(),
                    .type = model_.weights->type(),
                    .panels = model_.weights->embedding_is_packed(),
                    .rows = rows_,
                    .width = spec_.hidden,
                    .out = out});
  }

  // h = projection([norm(rows of the embedding), norm(h)])
  void join_tokens() {
    const MtpWeights& w = model_.weights->mtp();
    const int64_t d = spec_.hidden;
    float* embedded = io_.tape ? io_.tape->embedded() : ws_.embedded_.data();
    const Activation joined = io_.tape ? io_.tape->joined() : activation(ws_.joined_, 2 * d);
    Activation second = joined;
    second.data = static_cast<std::byte*>(joined.data) + d * size_of(joined.type);
    embed_to(embedded);
    norm(embedded, w.embedding_norm, nullptr, rows_, joined);
    norm(hidden(), w.hidden_norm, nullptr, rows_, second);
    run("join", kernels_.matmul,
        MatmulParams{.x = joined,
                     .w = w.projection,
                     .rows = rows_,
                     .runs = runs_of(1, 2 * d),
                     .bias = nullptr,
                     .accumulate = false,
                     .y = hidden(),
                     .y_stride = d});
    round_residual();
    trace("join", spec_.layers, hidden(), d, rows_);
  }

  // h = h + o(attention(rope(qkv(norm(h)))))
  void attention_block(int layer) {
    const LayerWeights& w = model_.weights->layers()[layer];
    if (tables_.num_copies > 0)
      run("copy_places", kernels_.copy_places,
          CopyPlacesParams{kv_.layer(layer), tables_.copies, tables_.num_copies});
    keep(at_.input);
    norm(hidden(), w.attention_norm, nullptr, rows_, at_.normed);
    trace("attention_norm", layer, at_.normed, spec_.hidden, rows_);

    qkv(layer, w);
    trace_queries(layer);

    attend({.q = at_.q,
            .rows = rows_,
            .heads = shard_.heads,
            .positions = tables_.positions,
            .table_of = tables_.table_of,
            .tables = tables_.tables,
            .window = spec_.window(layer),
            .kv = kv_.layer(layer),
            .out = at_.attended});
    trace("attention", layer, at_.attended, int64_t{shard_.heads} * spec_.head_dim, rows_);

    row_parallel("o", at_.attended, w.o, shard_.o_runs, w.o_bias, {&w.gate_up, true});
    trace("o", layer, hidden(), spec_.hidden, rows_);
  }

  // Rotated queries; keys and values in their places.
  void qkv(int layer, const LayerWeights& w) {
    const int64_t width = int64_t{shard_.heads + 2 * shard_.kv_heads} * spec_.head_dim;
    float* products = at_.qkv ? at_.qkv : ws_.qkv_.data();
    const QkvParams rope{.qkv = products,
                         .qkv_stride = width,
                         .rows = rows_,
                         .heads = shard_.heads,
                         .q_norm = w.q_norm,
                         .k_norm = w.k_norm,
                         .norm_eps = spec_.norm_eps,
                         .positions = tables_.positions,
                         .cos = model_.rope.cos(),
                         .sin = model_.rope.sin(),
                         .write_begin = tables_.write_begin,
                         .write_page = tables_.write_page,
                         .write_place = tables_.write_place,
                         .kv = kv_.layer(layer),
                         .q = at_.q,
                         .non_finite = ws_.non_finite_.data()};
    if (qkv_by_heads(width))
      return run("qkv", kernels_.qkv_product,
                 QkvProductParams{.x = at_.normed,
                                  .w = w.qkv,
                                  .bias = w.qkv_bias,
                                  .then = rope,
                                  .scratch = ws_.qkv_.data()});
    run("qkv", kernels_.matmul,
        MatmulParams{.x = at_.normed,
                     .w = w.qkv,
                     .rows = rows_,
                     .runs = runs_of(1, spec_.hidden),
                     .bias = w.qkv_bias,
                     .accumulate = false,
                     .y = products,
                     .y_stride = width,
                     .next = {&w.o}});
    trace("qkv", layer, products, width, rows_);
    run("rope", kernels_.qkv, rope);
  }

  // Whether product and rotation go head by head: with many rows, when the heads share out evenly
  // and nobody wants to see or keep the product.
  bool qkv_by_heads(int64_t width) const {
    constexpr int64_t kManyRows = 64;
    const int team = on_.team();
    return kernels_.qkv_product && !at_.qkv && rows_ >= kManyRows && shard_.kv_heads % team == 0 &&
           spec_.head_dim % kPanelWidth == 0 && !io_.trace && !model_.arithmetic.control &&
           team * qkv_scratch_stride(spec_.head_dim) <= width;
  }

  // h = h + down(silu(gate(norm(h))) * up(norm(h)))
  void ffn_block(int layer) {
    const LayerWeights& w = model_.weights->layers()[layer];
    keep(at_.middle);
    norm(hidden(), w.ffn_norm, nullptr, rows_, at_.ffn_normed);
    trace("ffn_norm", layer, at_.ffn_normed, spec_.hidden, rows_);
    const GatedMatmulParams gated{.x = at_.ffn_normed,
                                  .gate_up = w.gate_up,
                                  .rows = rows_,
                                  .gate_bias = w.gate_bias,
                                  .up_bias = w.up_bias,
                                  .out = at_.gated,
                                  .next = {&w.down}};
    if (io_.tape)
      run("gated", io_.tape->kernels().gated_matmul, KeptGatedMatmulParams{gated, at_.gate_up});
    else
      run("gated", kernels_.gated_matmul, gated);
    trace("gated", layer, at_.gated, shard_.ffn, rows_);
    row_parallel("down", at_.gated, w.down, shard_.down_runs, w.down_bias, first_of(layer + 1));
    trace("down", layer, hidden(), spec_.hidden, rows_);
  }

  // The first weights of a layer, if there is one.
  NextWeight first_of(int layer) const {
    const auto& layers = model_.weights->layers();
    return layer < std::ssize(layers) ? NextWeight{&layers[layer].qkv} : NextWeight{};
  }

  void attend(const AttentionParams& params) {
    timed("attention", [&] {
      if (model_.arithmetic.control)
        ws_.control_.run(model_, params);
      else if (io_.tape)
        model_.run(kernels_.partial_attention,
                   PartialAttentionParams{.of = params, .max = at_.max, .sum = at_.sum});
      else
        model_.run(kernels_.attention, params);
    });
  }

  // Into how many runs a product's inner size is cut: `defined` by the arithmetic (numerics 2),
  // unless this is the foil.
  int runs_of(int defined, int64_t k) const {
    return model_.arithmetic.control ? control::runs(rows_, k) : defined;
  }

  // h = h + (x * w (+ bias)), the inner size shared out over the ranks: numerics 2.
  void row_parallel(const char* name, const Activation& x, const PackedWeight& w, int runs,
                    const float* bias, NextWeight next) {
    const bool alone = group_.size() == 1;
    run(name, kernels_.matmul,
        MatmulParams{.x = x,
                     .w = w,
                     .rows = rows_,
                     .runs = runs_of(runs, w.k),
                     .bias = alone ? bias : nullptr,
                     .accumulate = alone,
                     .y = alone ? hidden() : ws_.partial_.data(),
                     .y_stride = spec_.hidden,
                     .next = next});
    if (alone) return round_residual();
    group_.tree_all_reduce(ws_.partial_.data(), rows_ * spec_.hidden, on_);
    run("add", kernels_.add,
        AddParams{.x = ws_.partial_.data(),
                  .bias = bias,
                  .rows = rows_,
                  .width = spec_.hidden,
                  .y = hidden()});
    round_residual();
  }

  // The foil keeps its residual stream in bf16; Invar in f32.
  void round_residual() {
    if (model_.arithmetic.control)
      run("round", kernels_.round_in_place, RoundInPlaceParams{hidden(), rows_ * spec_.hidden});
  }

  // Logits of the rows that want them, from the last residual stream.
  void head() {
    const int64_t count = std::ssize(batch_.logit_rows);
    if (count == 0) return;
    const int module = is_mtp_;
    if (io_.tape) keep(io_.tape->output(module));
    const Activation normed = io_.tape ? io_.tape->final_normed(module) : shared_.normed;
    norm(hidden(), is_mtp_ ? model_.weights->mtp().head_norm : model_.weights->final_norm(),
         tables_.logit_rows, count, normed);
    trace("final_norm", -1, normed, spec_.hidden, count, batch_.logit_rows.data());
    const bool alone = group_.size() == 1;
    float* mine = alone ? ws_.logits_.data() : ws_.rank_logits_.data();
    run("logits", kernels_.matmul,
        MatmulParams{.x = normed,
                     .w = model_.weights->head(),
                     .rows = count,
                     .runs = runs_of(1, spec_.hidden),
                     .bias = nullptr,
                     .accumulate = false,
                     .y = mine,
                     .y_stride = alone ? spec_.vocab : shard_.vocab_stride});
    if (!alone) gather_logits(mine, count);
    io_.device_logits = ws_.logits_.data();
    if (!io_.keep_logits)
      io_.logits = ws_.fetch(on_, ws_.logits_, ws_.host_logits_, count * spec_.vocab);
    trace("logits", -1, ws_.logits_.data(), spec_.vocab, count, batch_.logit_rows.data());
  }

  // Every rank holds a run of the vocabulary; all of them get the whole rows.
  void gather_logits(const float* mine, int64_t count) {
    const int64_t piece = count * shard_.vocab_stride;
    float* all = ws_.rank_logits_.data() + piece;
    group_.all_gather(mine, piece * static_cast<int64_t>(sizeof(float)), all, on_);
    for (int64_t r = 0; r < group_.size(); ++r) {
      const int64_t begin = r * shard_.vocab_stride;
      const int64_t width = std::min<int64_t>(shard_.vocab_stride, spec_.vocab - begin);
      if (width <= 0) break;
      on_.stream->copy_rows(ws_.logits_.data() + begin, spec_.vocab * sizeof(float),
                            all + r * piece, shard_.vocab_stride * sizeof(float),
                            width * sizeof(float), count);
    }
  }

  void norm(const float* x, const float* weight, const int32_t* rows_of, int64_t rows,
            const Activation& out) {
    run("norm", kernels_.rms_norm,
        RmsNormParams{.x = x,
                      .x_stride = spec_.hidden,
                      .rows_of = rows_of,
                      .weight = weight,
                      .eps = spec_.norm_eps,
                      .rows = rows,
                      .width = spec_.hidden,
                      .out = out});
  }

  // A copy of the residual stream for the backward.
  void keep(float* copy) {
    if (!copy) return;
    timed("keep", [&] {
      on_.pool->run([&](Part part) {
        const auto [begin, end] = part.of(rows_ * spec_.hidden, kPanelWidth);
        std::memcpy(copy + begin, hidden() + begin, (end - begin) * sizeof(float));
      });
    });
  }

  void load_hidden() {
    CHECK(std::ssize(io_.hidden) >= rows_ * spec_.hidden, "a later stage needs the hidden states");
    model_.device().upload(hidden(), io_.hidden.data(), hidden_bytes());
  }

  void store_hidden() {
    io_.hidden = ws_.fetch(on_, ws_.hidden_, ws_.host_hidden_, rows_ * spec_.hidden);
  }

  void tap(int layer) {
    const auto& taps = batch_.tap_layers;
    const auto it = std::find(taps.begin(), taps.end(), layer);
    if (it == taps.end()) return;
    CHECK(std::ssize(taps) <= ws_.max_taps_, "more taps than the workspace holds");
    float* all = ws_.host_taps_.data();
    on_.stream->download(all + (it - taps.begin()) * rows_ * spec_.hidden, hidden(),
                         hidden_bytes());
    io_.taps = {all, taps.size() * rows_ * spec_.hidden};
  }

  void collect_failures() {
    bool* failed = ws_.host_non_finite_.data();
    on_.stream->download(failed, ws_.non_finite_.data(), rows_ * sizeof(bool));
    if (!io_.keep_logits) on_.stream->wait();
    io_.non_finite = {failed, static_cast<size_t>(rows_)};
  }

  float* hidden() const { return ws_.hidden_.data(); }
  size_t hidden_bytes() const { return rows_ * spec_.hidden * sizeof(float); }
  Activation activation(const DeviceArray<std::byte>& memory, int64_t width) const {
    return {memory.data(), model_.arithmetic.type(), activation_stride(width)};
  }

  // Records `rows` rows of an operation's output; see trace.h.
  void trace(std::string_view name, int layer, const float* values, int64_t width, int64_t rows,
             const int32_t* rows_of = nullptr) {
    if (io_.trace) record({name, layer, nullptr, rows, width, width, rows_of}, values, DType::f32);
  }
  void trace(std::string_view name, int layer, const Activation& x, int64_t width, int64_t rows,
             const int32_t* rows_of = nullptr) {
    if (io_.trace) record({name, layer, nullptr, rows, width, x.stride, rows_of}, x.data, x.type);
  }
  void trace_queries(int layer) {
    const int64_t width = shard_.heads * round_up(spec_.head_dim, 32);
    if (io_.trace)
      record({"rope", layer, nullptr, rows_, width, width, nullptr}, at_.q, DType::bf16);
  }
  // Not for warm steps: copies to the host and widens.
  void record(TracedOp op, const void* values, DType type) {
    std::vector<std::byte> raw(op.rows * op.stride * size_of(type));
    model_.device().download(raw.data(), values, raw.size());
    std::vector<float> wide(op.rows * op.stride);
    for (size_t i = 0; i < wide.size(); ++i)
      wide[i] = type == DType::bf16 ? bf16_to_f32(reinterpret_cast<const bf16_t*>(raw.data())[i])
                                    : reinterpret_cast<const float*>(raw.data())[i];
    op.values = wide.data();
    io_.trace->record(op);
  }

  Decoder& model_;
  const DecoderSpec& spec_;
  const Shard& shard_;
  const Batch& batch_;
  KvStorage& kv_;
  Workspace& ws_;
  Group& group_;
  ForwardIo& io_;
  const Execution& on_;
  const Kernels& kernels_;
  const int64_t rows_;
  bool is_mtp_ = false;  // the range is the module that predicts one token further
  StepTables tables_;
  LayerActivations shared_;  // what layers use in turn when there is no tape
  LayerActivations at_;      // the current layer's
};

void forward(Decoder& decoder, const Batch& batch, KvStorage& kv, Workspace& workspace,
             Group& group, ForwardIo& io) {
  ScopedFlushToZero flush;
  ForwardPass(decoder, batch, kv, workspace, group, io).run();
}

}  // namespace invar
