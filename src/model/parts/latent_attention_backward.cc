// The gradients of latent attention (numerics 9): attention's are those of one key/value head,
// whose values have zeros behind the latent.
#include "model/parts/latent_attention.h"

namespace invar {

using enum TensorRole;

namespace {

// y[t][h] = x[t][h] * w[h], rows of y `y_stride` apart.
void heads_product(BackwardPass& b, const char* name, const Activation& x, const Matrix& w,
                   float* y, int64_t y_stride) {
  b.run(name, b.forward_kernels().heads_matmul,
        HeadsMatmulParams{.each = {.x = x,
                                   .w = w,
                                   .rows = b.rows(),
                                   .split_k = 1,
                                   .bias = nullptr,
                                   .accumulate = false,
                                   .y = y,
                                   .y_stride = y_stride},
                          .x_step = w.k,
                          .matmul = b.forward_kernels().matmul});
}

}  // namespace

// The gradients of the vectors that attention takes, queries first, then the key, as what is of
// latents and what turns. The value's place is no vector of that kind.
struct LatentAttention::Apart {
  const float* latents;  // [T][H + 2][latent]
  const float* turning;  // [T][H + 2][what turns]
};

// The gradients of the matrices of heads: of each head the outputs of dy and inputs of x.
void LatentAttention::heads_gradient(BackwardPass& b, TensorRole role, const Activation& dy,
                                     const Matrix& w, const Activation& x, int64_t x_step) const {
  float* gradient = b.gradient(role, layer_);
  if (!gradient) return;
  for (int64_t head = 0; head < w.count; ++head) {
    Activation inputs = x;
    inputs.data = static_cast<bf16_t*>(x.data) + head * x_step;
    b.pack_inputs(inputs, w.k);
    b.weight_gradient("heads dW", gradient + head * round_up(w.n * w.k, kPanelWidth), dy,
                      {head * w.n, w.n}, w.k);
  }
}

// From the gradient of the heads' outputs, in workspace().attended, to that of what attention left.
void LatentAttention::values_backward(BackwardPass& b, const Kept& kept) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t e = model_.head_dim, rank = latent_.rank;
  const Activation d_values = b.round(ws.attended.data(), width_of_heads(latent_.value), ws.wide);
  heads_gradient(b, value_up, d_values, kept.w.value_up, kept.at.attended, e);
  heads_product(b, "v up dX", d_values, kept.transposed.value_up, ws.qkv.data(),
                width_of_heads(rank));
  b.clear(ws.attended, width_of_heads(e));
  b.copy_columns({ws.attended.data(), e}, {ws.qkv.data(), rank}, rank, width_of_heads(b.rows()));
}

// Leaves the gradients of queries and keys before their rotation, and of values, in
// workspace().qkv.
void LatentAttention::attention_backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t e = model_.head_dim, width = width_of_heads(e) + 2 * e;
  const Attend::Arrays arrays{
      .products = nullptr, .q = at.q, .out = at.attended, .max = at.max, .sum = at.sum};
  attend_backward(b, spec_, kept.kv, arrays,
                  b.round(ws.attended.data(), width_of_heads(e), ws.wide), width);
  b.run("rotation backward", b.kernels().qkv_backward, rotation_backward(b, layer_, width));
}

// As place_latent puts them together.
LatentAttention::Apart LatentAttention::take_apart(BackwardPass& b) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t rank = latent_.rank, turns = latent_.rope, e = model_.head_dim, half = e / 2;
  const int64_t vectors = b.rows() * (model_.heads + 2), pairs = turns / 2, low = half - pairs;
  const float* d = ws.qkv.data();
  float *latents = ws.apart.data(), *turning = latents + vectors * rank;
  b.copy_columns({turning, turns}, {d, e}, pairs, vectors);
  b.copy_columns({latents, rank}, {d + pairs, e}, low, vectors);
  b.copy_columns({turning + pairs, turns}, {d + half, e}, pairs, vectors);
  b.copy_columns({latents + low, rank}, {d + half + pairs, e}, rank - low, vectors);
  return {latents, turning};
}

// The gradient of queries, and with a vector of their own that of this vector, as the first columns
// of workspace().down.
void LatentAttention::queries_backward(BackwardPass& b, const Kept& kept, const Apart& d) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t heads = model_.heads, rank = latent_.rank, stride = kept.w.down.n;
  const int64_t still = width_of_heads(latent_.nope), turns = width_of_heads(latent_.rope);
  const int64_t made_of = latent_.query_rank, width = still + turns;
  const Activation d_latents =
      b.round(d.latents, width_of_heads(rank), ws.wide, (heads + 2) * rank);
  heads_gradient(b, key_up, d_latents, kept.w.key_up, kept.at.still, latent_.nope);
  const RowsOf<float> d_queries{made_of ? ws.attended.data() : ws.down.data(),
                                made_of ? width : stride};
  heads_product(b, "k up dX", d_latents, kept.transposed.key_up, d_queries.first, d_queries.stride);
  b.copy_columns({d_queries.first + still, d_queries.stride},
                 {d.turning, (heads + 2) * latent_.rope}, turns, b.rows());
  if (!made_of) return;
  const Activation dy = b.round(d_queries.first, width, ws.wide);
  b.matmul("q dX", dy, kept.transposed.queries, ws.latent_normed.data());
  b.pack_inputs(kept.at.query, made_of);
  query_gradients(b, dy, made_of);
  b.norm_part({query_norm, layer_, kept.w.query_norm}, {made_of, norm_eps()}, kept.at.raw_query);
  b.copy_columns({ws.down.data(), stride}, {ws.latent.data(), made_of}, made_of, b.rows());
}

// Those of what makes queries of packed inputs.
void LatentAttention::query_gradients(BackwardPass& b, const Activation& dy, int64_t inputs) const {
  const int64_t still = width_of_heads(latent_.nope), turns = width_of_heads(latent_.rope);
  b.weight_gradient("q dW", b.gradient(still_query, layer_), dy, {0, still}, inputs);
  b.weight_gradient("q dW", b.gradient(turning_query, layer_), dy, {still, turns}, inputs);
}

// The gradient of latents, as keys and as values, and of what turns beside them, as the last
// columns of workspace().down.
void LatentAttention::latents_backward(BackwardPass& b, const Kept& kept, const Apart& d) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t heads = model_.heads, rank = latent_.rank, turns = latent_.rope;
  const int64_t e = model_.head_dim, stride = kept.w.down.n;
  const RowsOf<float> of_keys{ws.latent_normed.data(), rank}, of_values{ws.latent.data(), rank};
  b.copy_columns(of_keys, {d.latents + heads * rank, (heads + 2) * rank}, rank, b.rows());
  b.copy_columns(of_values, {ws.qkv.data() + (heads + 1) * e, (heads + 2) * e}, rank, b.rows());
  b.run("add", b.kernels().add_gradient,
        AddGradientParams{.x = of_values.first, .count = b.rows() * rank, .y = of_keys.first});
  b.norm_part({latent_norm, layer_, kept.w.latent_norm}, {rank, norm_eps()}, kept.at.raw_latents);
  float* down = ws.down.data() + stride - e;
  b.copy_columns({down, stride}, {ws.latent.data(), rank}, rank, b.rows());
  b.copy_columns({down + rank, stride}, {d.turning + heads * turns, (heads + 2) * turns}, turns,
                 b.rows());
}

// From the gradient of all that is made of the layer's input.
void LatentAttention::down_backward(BackwardPass& b, const Kept& kept) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, width = kept.w.down.n, e = model_.head_dim;
  const Activation dy = b.round(ws.down.data(), width, ws.wide);
  b.matmul("latents dX", dy, kept.transposed.down, ws.normed.data());
  b.pack_inputs(kept.at.normed, d);
  if (latent_.query_rank)
    b.weight_gradient("latents dW", b.gradient(query_down, layer_), dy, {0, latent_.query_rank}, d);
  else
    query_gradients(b, dy, d);
  b.weight_gradient("latents dW", b.gradient(latent_down, layer_), dy, {width - e, e}, d);
}

void LatentAttention::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, values = width_of_heads(latent_.value);
  const Activation d_out = b.round(b.d_hidden(), d, ws.out);
  b.matmul("o dX", d_out, kept.transposed.o, ws.attended.data());
  b.pack_inputs(at.out, values);
  b.weight_gradient("o dW", b.gradient(o, layer_), d_out, {0, d}, values);
  b.adapter(kept.w.o, at.out, shard_.runs(attention_output_split_k(model_, spec_)), d_out,
            ws.attended.data());
  values_backward(b, kept);
  attention_backward(b, kept);
  const Apart apart = take_apart(b);
  queries_backward(b, kept, apart);
  latents_backward(b, kept, apart);
  down_backward(b, kept);
  b.norm({input_norm, layer_, kept.w.norm}, at.stream);
}

const char* LatentAttention::refusal() const {
  if (latent_.indexer)
    return "an indexer chooses what its attention reads, whose gradient is not implemented";
  if (latent_.value % kLeafPad != 0)
    return "its heads' outputs are no whole thirty-twos, whose gradient is not implemented";
  if (model_.residual_scale != 1)
    return "its residual stream is scaled, whose gradient is not implemented";
  return nullptr;
}

}  // namespace invar
