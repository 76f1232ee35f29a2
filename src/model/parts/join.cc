// The beginning of a layer that continues from hidden states: a module that predicts one token
// further (DeepSeek-V3, section 2.2), and the layers of EAGLE. Every row has the token that follows
// and a hidden state.
#include "model/parts/makers.h"
#include "model/parts/part_of.h"

namespace invar {

namespace {

using enum TensorRole;

struct JoinWeights : PartWeights {
  Matrix fuse;                       // [D][features]
  Matrix projection;                 // [D][2D]: the token's embedding, then the hidden state
  const float* fuse_bias = nullptr;  // [D] or null, as the next ones
  const float* feature_norm = nullptr;
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  const float* projection_bias = nullptr;
};

struct JoinActivations : PartActivations {
  Activation features;        // [T][features] of another decoder
  float* embedded = nullptr;  // [T][D] rows of the embedding
  Activation joined;          // [T][2D] those and the hidden states
};

class Join final : public PartOf<JoinWeights, JoinActivations> {
 public:
  explicit Join(const PartPlace& place) : PartOf(place), spec_(*layer_spec_.find<JoinSpec>()) {}

  bool is_read_later() const override { return true; }
  const char* refusal() const override {
    return spec_ == JoinSpec{} ? nullptr : "it reads the hidden states of another model";
  }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass& b, const Kept& kept) const override;

  int64_t features() const { return int64_t{spec_.features} * spec_.feature_width; }

  const JoinSpec spec_;
};

// The module's are named as in DeepSeek's checkpoints. Every rank has all of them.
void Join::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden);
  if (spec_.features > 1) tensors.matrix(w.fuse, {{fuse, "fuse.weight", d, whole(features())}});
  if (spec_.fuse_bias) tensors.vector(w.fuse_bias, {{fuse_bias, "fuse.bias", d}});
  if (spec_.features == 1)
    tensors.vector(w.feature_norm, {{feature_norm, "feature_norm.weight", d}});
  if (spec_.embedding_norm) tensors.vector(w.embedding_norm, {{embedding_norm, "enorm.weight", d}});
  if (spec_.hidden_norm) tensors.vector(w.hidden_norm, {{hidden_norm, "hnorm.weight", d}});
  if (spec_.is_projected)
    tensors.matrix(w.projection,
                   {{projection, "eh_proj.weight", d, whole(2 * int64_t{model_.hidden})}});
  if (spec_.projection_bias)
    tensors.vector(w.projection_bias, {{projection_bias, "eh_proj.bias", d}});
}

void Join::place(ActivationMemory& memory, Activations& at) const {
  if (spec_.features > 1) at.features = memory.activation(features());
  at.embedded = memory.array<float>(model_.hidden);
  at.joined = memory.activation(2 * int64_t{model_.hidden});
  if (reads_joined(layer_spec_)) memory.hand_on(at.joined);
}

// h = fuse(features), or norm(feature), where the rows come with hidden states of another decoder
// joined = [norm(rows of the embedding), norm(h)]
// h = projection(joined); or attention reads joined, and h stays as it is or is normed
void Join::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  const int64_t d = model_.hidden;
  if (p.features && spec_.features > 1) {
    p.ops.round(p.features, features(), at.features);
    p.ops.product("fuse", at.features, w.fuse, w.fuse_bias, p.rows, p.hidden, d);
  } else if (p.features) {
    p.ops.norm(p.features, w.feature_norm, {p.hidden, DType::f32, d});
  }
  const Activation first = at.joined;
  Activation second = first;
  second.data = static_cast<std::byte*>(first.data) + d * size_of(first.type);
  p.ops.embed(at.embedded);
  p.ops.norm(at.embedded, w.embedding_norm, first);
  p.ops.norm(p.hidden, w.hidden_norm, second);
  if (spec_.is_projected)
    p.ops.product("join", first, w.projection, w.projection_bias, p.rows, p.hidden, d);
  else if (spec_.stream_is_normed)
    p.ops.norm(p.hidden, w.hidden_norm, {p.hidden, DType::f32, d});
  p.ops.round_residual();
  p.trace("join", p.hidden, d);
}

// Outputs [first, first + count) of a matrix, of whole panels.
Matrix outputs_of(const Matrix& w, int64_t first, int64_t count) {
  Matrix part = w;
  part.data = static_cast<const std::byte*>(w.data) + first / w.unit_outputs() * w.unit_bytes();
  part.n = count;
  return part;
}

// Leaves the gradient of h, what the module goes on from.
void Join::backward(BackwardPass& b, const Kept& kept) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden;
  const Matrix& to_both = kept.transposed.projection;  // [2D][D]
  const Activation d_out = b.round(b.d_hidden(), d, ws.out);
  b.pack_inputs(kept.at.joined, 2 * d);
  b.weight_gradient("join dW", b.gradient(projection, layer_), d_out, {0, d}, 2 * d);
  b.clear_hidden();
  b.matmul("join dX", d_out, outputs_of(to_both, 0, d), ws.normed.data());
  b.norm({embedding_norm, layer_, kept.w.embedding_norm}, kept.at.embedded);
  b.embed(b.module().embedding);
  b.clear_hidden();
  b.matmul("join dX", d_out, outputs_of(to_both, d, d), ws.normed.data());
  b.norm({hidden_norm, layer_, kept.w.hidden_norm}, b.module_input());
}

}  // namespace

std::unique_ptr<LayerPart> make_join(const PartPlace& place) {
  return std::make_unique<Join>(place);
}

}  // namespace invar
