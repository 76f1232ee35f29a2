#include "train/drafter/eagle_graph.h"

#include <algorithm>
#include <cstring>

namespace invar {

namespace {

// The tensors in the order of computation; EagleGraph::number says where they stand.
enum Tensor {
  kEmbedding,
  kFuse,
  kEmbeddingNorm,
  kHiddenNorm,
  kQ,
  kK,
  kV,
  kO,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kFinalNorm,
  kHead
};

constexpr const char* kTargetEmbedding = "model.embed_tokens.weight";

constexpr float kEps = 1e-6f;

DecoderSpec layer_spec(const DrafterSpec& spec, const DecoderSpec& target) {
  DecoderSpec layer{.family = "llama",
                    .hidden = spec.hidden,
                    .layers = 1,
                    .heads = spec.heads,
                    .kv_heads = spec.kv_heads,
                    .head_dim = spec.head_dim,
                    .vocab = target.vocab,
                    .max_positions = target.max_positions,
                    .norm_eps = kEps};
  RopeSpec rope;
  if (const auto* attention = target.first<AttentionSpec>(); attention && attention->rope)
    rope.theta = attention->rope->theta;
  layer.set_layers({.parts = {AttentionSpec{.rope = rope}, DenseFfnSpec{.width = spec.ffn}}});
  return layer;
}

// A feature is the input of a layer: what the one before it leaves.
std::vector<int32_t> layers_before(const std::vector<int>& features) {
  std::vector<int32_t> layers;
  for (const int layer : features) layers.push_back(layer - 1);
  return layers;
}

// At the target's width its embedding is read, and all begins where the target ends: the last
// feature, the target's final norm and its head. Else everything is the drafter's own.
std::vector<DrafterTensor> tensors_of(const DecoderSpec& layer, const DecoderSpec& target,
                                      std::span<const int32_t> frequent) {
  const int64_t d = layer.hidden, q = layer.query_width(), kv = layer.kv_width(),
                f = layer.layer(0).ffn_width();
  const auto matrix = [](const char* name, int64_t n, int64_t k) {
    return DrafterTensor{.name = name, .shape = {n, k}, .deviation = first_deviation(k)};
  };
  const auto norm = [&](const char* name) {
    return DrafterTensor{.name = name, .shape = {d}, .value = 1};
  };
  std::vector<DrafterTensor> tensors = {
      {.name = "embed_tokens.weight", .shape = {layer.vocab, d}, .deviation = 0.02},
      matrix("fc.weight", d, 3 * int64_t{target.hidden}),
      norm("midlayer.input_layernorm.weight"),
      norm("midlayer.hidden_norm.weight"),
      matrix("midlayer.self_attn.q_proj.weight", q, 2 * d),
      matrix("midlayer.self_attn.k_proj.weight", kv, 2 * d),
      matrix("midlayer.self_attn.v_proj.weight", kv, 2 * d),
      matrix("midlayer.self_attn.o_proj.weight", d, q),
      norm("midlayer.post_attention_layernorm.weight"),
      matrix("midlayer.mlp.gate_proj.weight", f, d),
      matrix("midlayer.mlp.up_proj.weight", f, d),
      matrix("midlayer.mlp.down_proj.weight", d, f),
      norm("norm.weight"),
      matrix("lm_head.weight", std::ssize(frequent), d)};
  if (layer.hidden != target.hidden) return tensors;
  tensors[kFuse].identity_at = 2 * d;
  tensors[kFinalNorm].copied_from = "model.norm.weight";
  tensors[kHead].copied_from = target.tied_head ? kTargetEmbedding : "lm_head.weight";
  tensors[kHead].copied_rows.assign(frequent.begin(), frequent.end());
  tensors.erase(tensors.begin());
  return tensors;
}

}  // namespace

EagleGraph::EagleGraph(const DrafterSpec& spec, const OptimizerOptions& optimizer,
                       const DrafterTarget& target, std::span<const int32_t> frequent,
                       Device& device, DrafterMath& math)
    : DrafterGraph(spec, math, layers_before(spec.features)),
      target_(target.model.spec),
      layer_(layer_spec(spec, target_)),
      shape_{layer_.heads, layer_.kv_heads, layer_.head_dim},
      frequent_(frequent.begin(), frequent.end()),
      known_as_(static_cast<size_t>(target_.vocab), -1),
      rope_(device, layer_.layer(0).attention()->rope, layer_.head_dim, layer_.max_positions) {
  for (size_t i = 0; i < frequent_.size(); ++i)
    known_as_[static_cast<size_t>(frequent_[i])] = static_cast<int32_t>(i);
  const int64_t d = layer_.hidden, v = std::ssize(frequent_), f = layer_.layer(0).ffn_width();
  parameters_ = std::make_unique<DrafterParameters>(tensors_of(layer_, target_, frequent_),
                                                    optimizer, math.training(), device);
  if (!has_embedding()) {
    targets_embedding_.resize(static_cast<size_t>(target_.vocab * d));
    target.weights.read(kTargetEmbedding, 0, target_.vocab * d, DType::bf16,
                        targets_embedding_.data());
  }
  fuse_ = math.matrix(number(kFuse), d, 3 * int64_t{target_.hidden}, 0);
  qkv_ = math.matrix(number(kQ), shape_.width(), 2 * d, 2);
  o_ = math.matrix(number(kO), d, layer_.query_width(), 1);
  gate_up_ = math.gated_pair(number(kGate), f, d);
  down_ = math.matrix(number(kDown), d, f, 1);
  head_ = math.matrix(number(kHead), v, d, 1);
  for (int s = 0; s < spec.levels; ++s) steps_.push_back(make_step(math));
  features_ = math.rounded(3 * int64_t{target_.hidden});
  for (FloatRows* rows : {&embedded_, &d_hidden_, &d_normed_, &d_embedded_}) *rows = math.floats(d);
  for (FloatRows* rows : {&logits_, &teacher_logits_}) *rows = math.floats(v);
  for (FloatRows* rows : {&attended_, &d_attended_}) *rows = math.floats(layer_.query_width());
  d_gated_ = math.floats(f);
  d_out_ = math.rounded(d);
  d_gate_up_ = math.rounded(2 * round_up(f, kPanelWidth));
  d_qkv_ = math.rounded(shape_.width());
}

EagleGraph::Step EagleGraph::make_step(DrafterMath& math) const {
  const int64_t d = layer_.hidden;
  return {.feature = math.floats(d),
          .joined = math.rounded(2 * d),
          .qkv = math.floats(shape_.width()),
          .d_qkv = math.floats(shape_.width()),
          .attended = math.rounded(layer_.query_width()),
          .middle = math.floats(d),
          .ffn_normed = math.rounded(d),
          .gate_up = math.floats(2 * round_up(layer_.layer(0).ffn()->width, kPanelWidth)),
          .gated = math.rounded(layer_.layer(0).ffn_width()),
          .out = math.floats(d),
          .normed = math.rounded(d),
          .d_logits = math.rounded(std::ssize(frequent_))};
}

void EagleGraph::publish() {
  for (const TrainedMatrix* matrix : {&fuse_, &qkv_, &o_, &gate_up_, &down_, &head_})
    math_.pack(*parameters_, *matrix);
  norms_ = {.embedding = math_.vector_of(*parameters_, number(kEmbeddingNorm)),
            .hidden = math_.vector_of(*parameters_, number(kHiddenNorm)),
            .ffn = math_.vector_of(*parameters_, number(kFfnNorm)),
            .final = math_.vector_of(*parameters_, number(kFinalNorm))};
}

void EagleGraph::compute(const TargetRows& target, bool learns, bool begins,
                         std::span<LevelScore> scores) {
  begin_batch(target);
  for (int s = 0; s < levels(); ++s) {
    take_feature(s);
    layer(s, target.batch);
    score(s, target, learns, scores[s]);
  }
  if (learns) backward(target.batch, begins);
}

// Features, embeddings of the tokens that follow, and what the target says of the tokens that the
// drafter knows, one row further.
void EagleGraph::begin_batch(const TargetRows& target) {
  const size_t rows = target.batch.rows.size();
  tokens_.assign(rows, 0);
  positions_.assign(rows, 0);
  wanted_.assign(rows, -1);
  for (size_t t = 0; t < rows; ++t) {
    positions_[t] = target.batch.rows[t].position;
    if (t + 1 == rows) continue;
    tokens_[t] = target.batch.rows[t + 1].token;
    wanted_[t] = known_as_[static_cast<size_t>(target.scores.argmax[t + 1])];
  }
  rope_.fill(*std::ranges::max_element(positions_) + 1, math_.on());
  const int64_t d = layer_.hidden, width = target_.hidden, vocab = std::ssize(frequent_);
  const int64_t stride = activation_stride(3 * width);
  const bf16_t* embedding =
      has_embedding() ? parameters_->weights(number(kEmbedding)) : targets_embedding_.data();
  math_.for_rows([&](int64_t t) {
    for (int64_t i = 0; i < 3; ++i)
      convert_elements(&target.hidden[static_cast<size_t>((i * std::ssize(tokens_) + t) * width)],
                       DType::f32, width, DType::bf16,
                       features_.memory.data() + t * stride + i * width);
    convert_elements(embedding + tokens_[t] * d, DType::bf16, d, DType::f32, embedded_.row(t));
    const int64_t next = std::min<int64_t>(t + 1, std::ssize(tokens_) - 1);
    const float* logits = target.scores.logits + next * target.scores.vocab;
    for (int64_t i = 0; i < vocab; ++i) teacher_logits_.row(t)[i] = logits[frequent_[i]];
  });
}

// The residual stream before the layer: the fused features, later the layer's output at the
// position before.
void EagleGraph::take_feature(int index) {
  Step& step = steps_[index];
  if (index == 0) return math_.product(features_.activation(), fuse_.forward, step.feature.data());
  const FloatRows& before = steps_[index - 1].out;
  std::fill_n(step.feature.data(), layer_.hidden, 0.0f);
  std::memcpy(step.feature.row(1), before.data(),
              sizeof(float) * static_cast<size_t>((math_.rows() - 1) * layer_.hidden));
}

// As the drafter computes it (drafters/eagle.h).
void EagleGraph::layer(int index, const Batch& batch) {
  Step& step = steps_[index];
  const int64_t d = layer_.hidden;
  const Activation first = step.joined.activation();
  Activation second = first;
  second.data = step.joined.memory.data() + d;
  math_.norm(embedded_.data(), norms_.embedding.data(), kEps, d, first);
  math_.norm(step.feature.data(), norms_.hidden.data(), kEps, d, second);
  math_.product(first, qkv_.forward, step.qkv.data());
  math_.run(math_.kernels().rotate_heads, RotateHeadsParams{.x = step.qkv.data(),
                                                            .x_stride = shape_.width(),
                                                            .rows = math_.rows(),
                                                            .heads = layer_.heads + layer_.kv_heads,
                                                            .head_dim = layer_.head_dim,
                                                            .positions = positions_.data(),
                                                            .cos = rope_.cos(),
                                                            .sin = rope_.sin()});
  std::vector<const float*> qkv;
  for (int s = 0; s <= index; ++s) qkv.push_back(steps_[s].qkv.data());
  unrolled_attention(shape_, batch, qkv, attended_.data(), *math_.on().pool);
  math_.round(attended_.data(), step.attended);
  std::memcpy(step.middle.data(), step.feature.data(),
              sizeof(float) * static_cast<size_t>(math_.rows() * d));
  math_.product(step.attended.activation(), o_.forward, step.middle.data(), true);
  math_.norm(step.middle.data(), norms_.ffn.data(), kEps, d, step.ffn_normed.activation());
  math_.gated_product(step.ffn_normed.activation(), gate_up_.forward, step.gated.activation(),
                      step.gate_up.data());
  std::memcpy(step.out.data(), step.middle.data(),
              sizeof(float) * static_cast<size_t>(math_.rows() * d));
  math_.product(step.gated.activation(), down_.forward, step.out.data(), true);
}

void EagleGraph::score(int index, const TargetRows& target, bool learns, LevelScore& score) {
  Step& step = steps_[index];
  const int64_t vocab = std::ssize(frequent_);
  math_.norm(step.out.data(), norms_.final.data(), kEps, layer_.hidden, step.normed.activation());
  math_.product(step.normed.activation(), head_.forward, logits_.data());
  const Scores own = math_.scores_of(logits_.data(), vocab);
  const std::vector<float> weights = weights_of(target, index, 1, index);
  add_score(own, wanted_, weights, score);
  if (learns)
    math_.loss_gradient(own, math_.scores_of(teacher_logits_.data(), vocab), 0, weights,
                        step.d_logits);
}

// From the last step to the first: d_hidden_ is the gradient of a step's output, then of its
// feature, which is the output of the step before at the position before.
void EagleGraph::backward(const Batch& batch, bool begins) {
  const size_t d = static_cast<size_t>(layer_.hidden), rows = batch.rows.size();
  std::fill_n(d_hidden_.data(), rows * d, 0.0f);
  std::fill_n(d_embedded_.data(), rows * d, 0.0f);
  for (Step& step : steps_)
    std::fill_n(step.d_qkv.data(), rows * static_cast<size_t>(shape_.width()), 0.0f);
  for (int s = levels() - 1; s >= 0; --s) {
    const bool first = begins && s == levels() - 1;
    head_backward(steps_[s], first);
    ffn_backward(steps_[s], first);
    attention_backward(s, batch, first);
    if (s == 0) break;
    std::memmove(d_hidden_.data(), d_hidden_.row(1), (rows - 1) * d * sizeof(float));
    std::fill_n(d_hidden_.row(static_cast<int64_t>(rows) - 1), d, 0.0f);
  }
  math_.round(d_hidden_.data(), d_out_);
  math_.weight_gradient(*parameters_, fuse_, d_out_.activation(), features_.activation(), begins);
  embedding_backward();
}

// Adds the gradient of a norm's input, whose output has the gradient d_normed_.
void EagleGraph::gradient_of_norm(int tensor, const FloatRows& x, const std::vector<float>& weight,
                                  FloatRows& dx) {
  math_.norm_backward(d_normed_.data(), x.data(), weight.data(), kEps, layer_.hidden, dx.data(),
                      parameters_->gradient(number(tensor)));
}

void EagleGraph::head_backward(Step& step, bool begins) {
  math_.product(step.d_logits.activation(), head_.backward[0], d_normed_.data());
  math_.weight_gradient(*parameters_, head_, step.d_logits.activation(), step.normed.activation(),
                        begins);
  gradient_of_norm(kFinalNorm, step.out, norms_.final, d_hidden_);
}

void EagleGraph::ffn_backward(Step& step, bool begins) {
  math_.round(d_hidden_.data(), d_out_);
  math_.product(d_out_.activation(), down_.backward[0], d_gated_.data());
  math_.weight_gradient(*parameters_, down_, d_out_.activation(), step.gated.activation(), begins);
  math_.run(math_.training().gate_backward,
            GateBackwardParams{.gate_up = step.gate_up.data(),
                               .gate_bias = nullptr,
                               .up_bias = nullptr,
                               .d_gated = d_gated_.data(),
                               .rows = math_.rows(),
                               .width = layer_.layer(0).ffn()->width,
                               .out = d_gate_up_.activation()});
  math_.product(d_gate_up_.activation(), gate_up_.backward[0], d_normed_.data());
  math_.weight_gradient(*parameters_, gate_up_, d_gate_up_.activation(),
                        step.ffn_normed.activation(), begins);
  gradient_of_norm(kFfnNorm, step.middle, norms_.ffn, d_hidden_);
}

void EagleGraph::attention_backward(int index, const Batch& batch, bool begins) {
  Step& step = steps_[index];
  math_.round(d_hidden_.data(), d_out_);
  math_.product(d_out_.activation(), o_.backward[0], d_attended_.data());
  math_.weight_gradient(*parameters_, o_, d_out_.activation(), step.attended.activation(), begins);
  std::vector<const float*> qkv;
  std::vector<float*> d_qkv;
  for (int s = 0; s <= index; ++s) {
    qkv.push_back(steps_[s].qkv.data());
    d_qkv.push_back(steps_[s].d_qkv.data());
  }
  unrolled_attention_backward(shape_, batch, qkv, d_attended_.data(), d_qkv, *math_.on().pool);
  math_.run(math_.training().qkv_backward, QkvBackwardParams{.d_qkv = step.d_qkv.data(),
                                                             .d_qkv_stride = shape_.width(),
                                                             .qkv = nullptr,
                                                             .qkv_stride = 0,
                                                             .rows = math_.rows(),
                                                             .heads = layer_.heads,
                                                             .kv_heads = layer_.kv_heads,
                                                             .head_dim = layer_.head_dim,
                                                             .q_norm = nullptr,
                                                             .k_norm = nullptr,
                                                             .norm_eps = kEps,
                                                             .positions = positions_.data(),
                                                             .cos = rope_.cos(),
                                                             .sin = rope_.sin(),
                                                             .rs = nullptr,
                                                             .out = d_qkv_.activation()});
  math_.weight_gradient(*parameters_, qkv_, d_qkv_.activation(), step.joined.activation(), begins);
  math_.product(d_qkv_.activation(), qkv_.backward[0], d_normed_.data());
  add(d_embedded_, d_normed_);
  math_.product(d_qkv_.activation(), qkv_.backward[1], d_normed_.data());
  gradient_of_norm(kHiddenNorm, step.feature, norms_.hidden, d_hidden_);
}

// All steps read the same tokens' embeddings.
void EagleGraph::embedding_backward() {
  std::swap(d_normed_, d_embedded_);
  std::fill_n(d_embedded_.data(), math_.rows() * layer_.hidden, 0.0f);
  gradient_of_norm(kEmbeddingNorm, embedded_, norms_.embedding, d_embedded_);
  if (!has_embedding()) return;
  math_.run(math_.training().embed_gradient,
            EmbedGradientParams{.tokens = tokens_.data(),
                                .dx = d_embedded_.data(),
                                .rows = math_.rows(),
                                .width = layer_.hidden,
                                .gradient = parameters_->gradient(number(kEmbedding))});
}

void EagleGraph::add(FloatRows& y, const FloatRows& x) const {
  math_.for_rows([&](int64_t t) {
    for (int64_t i = 0; i < y.width; ++i) y.row(t)[i] += x.row(t)[i];
  });
}

json::Value EagleGraph::config() const {
  json::Value config = config_json({.spec = layer_});
  config.set("architectures", json::Array{"LlamaForCausalLMEagle3"});
  config.set("draft_vocab_size", std::ssize(frequent_));
  config.set("target_hidden_size", target_.hidden);
  json::Array layers;
  for (const int32_t layer : aux_layers()) layers.push_back(layer + 1);
  config.set("eagle_aux_hidden_state_layer_ids", std::move(layers));
  return config;
}

// d2t: how far the target's id of a token is from the drafter's.
std::vector<IntegerTensor> EagleGraph::integers() const {
  IntegerTensor d2t{.name = "d2t", .values = {}};
  for (size_t i = 0; i < frequent_.size(); ++i)
    d2t.values.push_back(frequent_[i] - static_cast<int64_t>(i));
  return {d2t};
}

}  // namespace invar
