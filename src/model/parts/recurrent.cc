// Heads with a state in the place of attention: the gated delta rule (Yang et al., 2024), whose
// queries, keys and values come out of a short convolution and whose outputs go through a gated
// norm (numerics 4.4).
#include "kernels/recurrent.h"

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "model/parts/makers.h"
#include "model/parts/part_of.h"

namespace invar {

namespace {

using enum TensorRole;

static_assert(kChunkSlots == kBoundary, "a chunk of the kernels is what a cell holds");

struct RecurrentWeights : PartWeights {
  Matrix inputs;                     // [2 K R + 2 H V][D]: queries, keys, values, gates of outputs
  Matrix gates;                      // [2 H][D]: factors, decays
  Matrix o;                          // [D][H V]
  const float* norm = nullptr;       // [D]
  const float* conv = nullptr;       // [taps][2 K R + H V]
  const float* bias = nullptr;       // [H], of decays
  const float* log_rate = nullptr;   // [H]
  const float* head_norm = nullptr;  // [V]
};

struct RecurrentActivations : PartActivations {
  Activation normed;         // [T][D]
  float* inputs = nullptr;   // [T][2 K R + 2 H V]
  float* gates = nullptr;    // [T][2 H]
  Activation mixed;          // [T][2 K R + H V], behind the convolution; f32
  float* decays = nullptr;   // [T][H]
  float* factors = nullptr;  // [T][H]
  bf16_t* q = nullptr;       // [T][K][round_up(R, 32)]; f32 where all is
  bf16_t* k = nullptr;
  float* out = nullptr;  // [T][H V]
  Activation gated;      // [T][H V]
};

// Memory of a sequence: arrays of a cell, one after the other.
class CellArrays {
 public:
  explicit CellArrays(const Cells& cells = {}) : cells_(cells) {}
  Cells take(int64_t bytes) {
    const Cells array{cells_.data ? cells_.at<char>(0) + taken_ : nullptr, cells_.bytes};
    taken_ += round_up(bytes, 64);
    return array;
  }
  int64_t taken() const { return taken_; }

 private:
  Cells cells_;
  int64_t taken_ = 0;
};

struct RecurrentMemory {
  RecurrentLayer layer;
  Cells inputs, before;  // of the convolution
};

class Recurrent final : public PartOf<RecurrentWeights, RecurrentActivations> {
 public:
  explicit Recurrent(const PartPlace& place)
      : PartOf(place),
        spec_(*layer_spec_.find<RecurrentSpec>()),
        key_heads_(spec_.key_heads / shard_.size),
        heads_(spec_.heads / shard_.size) {}

  StateShape state() const override;
  const char* refusal() const override {
    return "its heads have a state, whose gradient is not implemented";
  }

 private:
  void visit(Weights& w, TensorVisitor& tensors) const override;
  const Matrix* first(const Weights& w) const override { return &w.inputs; }
  void place(ActivationMemory& memory, Activations& at) const override;
  void forward(const PartPass& p, const Weights& w, const Activations& at) const override;
  void backward(BackwardPass&, const Kept&) const override {
    CHECK(false, "a backward of a recurrent layer");  // refused before
  }

  // Widths of a row.
  int64_t keys() const { return int64_t{key_heads_} * spec_.key_size; }
  int64_t values() const { return int64_t{heads_} * spec_.value_size; }
  int64_t channels() const { return 2 * keys() + values(); }

  RecurrentMemory memory_of(CellArrays& chunks, CellArrays& states, DType type) const;
  void convolve(const PartPass& p, const Weights& w, const Activations& at,
                const RecurrentMemory& memory) const;
  void recur(const PartPass& p, const Weights& w, const Activations& at,
             const RecurrentLayer& layer) const;

  const RecurrentSpec spec_;
  const int key_heads_, heads_;  // of this rank
};

RecurrentMemory Recurrent::memory_of(CellArrays& chunks, CellArrays& states, DType type) const {
  RecurrentMemory memory{.layer = {.kind = Recurrence::delta,
                                   .key_heads = key_heads_,
                                   .heads = heads_,
                                   .key_size = spec_.key_size,
                                   .value_size = spec_.value_size,
                                   .type = type}};
  RecurrentLayer& layer = memory.layer;
  const int64_t element = size_of(type);
  layer.keys = chunks.take(key_heads_ * layer.key_elements() * element);
  layer.values = chunks.take(heads_ * layer.value_elements() * element);
  layer.sums = chunks.take(heads_ * layer.sum_elements() * size_of(DType::f32));
  memory.inputs = chunks.take(kChunkSlots * channels() * element);
  layer.states = states.take(heads_ * layer.state_elements() * size_of(DType::f32));
  if (type == DType::bf16) layer.operands = states.take(heads_ * layer.state_elements() * element);
  memory.before = states.take((spec_.taps - 1) * channels() * element);
  return memory;
}

StateShape Recurrent::state() const {
  CellArrays chunks, states, f32_chunks, f32_states;
  memory_of(chunks, states, DType::bf16);
  memory_of(f32_chunks, f32_states, DType::f32);
  return {.chunk_bytes = chunks.taken(),
          .state_bytes = states.taken(),
          .f32_chunk_bytes = f32_chunks.taken(),
          .f32_state_bytes = f32_states.taken()};
}

// Ranks share out key heads, each with its value heads.
void Recurrent::visit(Weights& w, TensorVisitor& tensors) const {
  const TensorAxis d = whole(model_.hidden);
  const auto of_ranks = [&](int64_t size) { return shared(size, shard_.rank, shard_.size); };
  const TensorAxis keys = of_ranks(int64_t{spec_.key_heads} * spec_.key_size),
                   values = of_ranks(int64_t{spec_.heads} * spec_.value_size),
                   heads = of_ranks(spec_.heads);
  Each taps{spec_.taps, std::vector<int32_t>(static_cast<size_t>(spec_.taps))};
  std::iota(taps.here.begin(), taps.here.end(), 0);

  tensors.vector(w.norm, {{input_norm, "input_layernorm.weight", d}});
  tensors.matrix(w.inputs,
                 {{recurrent_q, "linear_attn.q_proj.weight", keys, d},
                  {recurrent_k, "linear_attn.k_proj.weight", keys, d},
                  {recurrent_v, "linear_attn.v_proj.weight", values, d},
                  {recurrent_gate, "linear_attn.z_proj.weight", values, d}},
                 {.takes_quantised = true});
  tensors.matrix(w.gates, {{recurrent_factor, "linear_attn.b_proj.weight", heads, d},
                           {recurrent_decay, "linear_attn.a_proj.weight", heads, d}});
  tensors.vector(w.conv,
                 {{conv_q, "linear_attn.conv.{}.q.weight", keys},
                  {conv_k, "linear_attn.conv.{}.k.weight", keys},
                  {conv_v, "linear_attn.conv.{}.v.weight", values}},
                 &taps);
  tensors.vector(w.bias, {{decay_bias, "linear_attn.dt_bias", heads}});
  tensors.vector(w.log_rate, {{decay_rate, "linear_attn.A_log", heads}});
  tensors.vector(w.head_norm, {{head_norm, "linear_attn.norm.weight", whole(spec_.value_size)}});
  tensors.matrix(w.o, {{recurrent_o, "linear_attn.out_proj.weight", d, values}},
                 {.takes_quantised = true});
}

void Recurrent::place(ActivationMemory& memory, Activations& at) const {
  at.normed = memory.activation(model_.hidden);
  at.inputs = memory.array<float>(channels() + values());
  at.gates = memory.array<float>(2 * heads_);
  const int64_t padded = round_up(channels(), kLeafPad);
  at.mixed = {memory.array<float>(padded), DType::f32, padded};
  at.decays = memory.array<float>(heads_);
  at.factors = memory.array<float>(heads_);
  at.q = memory.heads(key_heads_, spec_.key_size);
  at.k = memory.heads(key_heads_, spec_.key_size);
  at.out = memory.array<float>(values());
  at.gated = memory.activation(values());
}

// h = h + o(gated_norm(recurrence(conv(inputs(norm(h))), gates(norm(h)))))
void Recurrent::forward(const PartPass& p, const Weights& w, const Activations& at) const {
  CellArrays chunks(p.chunks), states(p.states);
  RecurrentMemory memory = memory_of(chunks, states, p.ops.arithmetic().heads());
  memory.layer.layout = p.ops.kernels().cache;
  const CellTables& cells = p.ops.tables().cells;
  if (cells.num_copies > 0)
    p.ops.run("copy_cells", p.ops.kernels().copy_cells,
              CopyCellsParams{p.chunks, cells.copies, cells.num_copies});

  p.ops.norm(p.hidden, w.norm, at.normed);
  p.trace("attention_norm", at.normed, model_.hidden);
  p.ops.product("recurrent inputs", at.normed, w.inputs, nullptr, p.rows, at.inputs, w.inputs.n);
  p.ops.product("recurrent gates", at.normed, w.gates, nullptr, p.rows, at.gates, w.gates.n, &w.o);
  convolve(p, w, at, memory);
  recur(p, w, at, memory.layer);
  p.ops.run("gated norm", p.ops.kernels().gated_norm,
            GatedNormParams{.x = at.out,
                            .x_stride = values(),
                            .gate = at.inputs + channels(),
                            .gate_stride = w.inputs.n,
                            .weight = w.head_norm,
                            .own_weights = false,
                            .is_sigmoid = false,
                            .gate_first = false,
                            .eps = model_.norm_eps,
                            .rows = p.rows,
                            .groups = heads_,
                            .width = spec_.value_size,
                            .out = at.gated});
  p.trace("gated norm", at.gated, values());
  p.ops.add_product("o", at.gated, w.o, shard_.runs(recurrent_output_split_k(spec_)), nullptr,
                    nullptr, p.next);
  p.trace("o", p.hidden, model_.hidden);
}

// Where rows stand among the cells of sequences.
RowPlaces places_of(const PartPass& p) {
  const StepTables& tables = p.ops.tables();
  return {.rows = p.rows,
          .positions = tables.positions,
          .table_of = tables.cells.table_of,
          .tables = tables.cells.tables,
          .write_begin = tables.cells.write_begin,
          .write_cell = tables.cells.write_cell};
}

void Recurrent::convolve(const PartPass& p, const Weights& w, const Activations& at,
                         const RecurrentMemory& memory) const {
  const CellTables& cells = p.ops.tables().cells;
  p.ops.run("short conv", p.ops.kernels().short_conv,
            ShortConvParams{.x = at.inputs,
                            .x_stride = w.inputs.n,
                            .factor = nullptr,
                            .factor_stride = 0,
                            .places = places_of(p),
                            .channels = channels(),
                            .taps = spec_.taps,
                            .weight = w.conv,
                            .bias = nullptr,
                            .silu = true,
                            .gate = nullptr,
                            .gate_stride = 0,
                            .inputs = memory.inputs,
                            .before = memory.before,
                            .type = memory.layer.type,
                            .before_of = cells.before_of,
                            .next_state = cells.next_state,
                            .out = at.mixed,
                            .non_finite = p.ops.non_finite()});
  p.trace("short conv", at.mixed, channels());
  p.ops.run("recurrent gates", p.ops.kernels().recurrent_gates,
            RecurrentGatesParams{.kind = Recurrence::delta,
                                 .a = at.gates + heads_,
                                 .a_stride = w.gates.n,
                                 .z = at.gates,
                                 .z_stride = w.gates.n,
                                 .log_rate = w.log_rate,
                                 .bias = w.bias,
                                 .rows = p.rows,
                                 .heads = heads_,
                                 .channels = 1,
                                 .doubles = false,
                                 .least = 0,
                                 .most = 0,
                                 .decays = at.decays,
                                 .factors = at.factors});
}

void Recurrent::recur(const PartPass& p, const Weights&, const Activations& at,
                      const RecurrentLayer& layer) const {
  const CellTables& cells = p.ops.tables().cells;
  const float* mixed = static_cast<const float*>(at.mixed.data);
  p.ops.run("recurrent keys", p.ops.kernels().recurrent_keys,
            RecurrentKeysParams{
                .queries = mixed,
                .keys = mixed + keys(),
                .stride = at.mixed.stride,
                .normalises = true,
                .eps = 1e-6f,
                .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec_.key_size))),
                .layer = layer,
                .places = places_of(p),
                .q = at.q,
                .k = at.k,
                .non_finite = p.ops.non_finite()});
  p.ops.run("recurrence", p.ops.kernels().recurrence,
            RecurrenceParams{.layer = layer,
                             .places = places_of(p),
                             .q = at.q,
                             .k = at.k,
                             .v = mixed + 2 * keys(),
                             .v_stride = at.mixed.stride,
                             .decays = at.decays,
                             .factors = at.factors,
                             .skips = nullptr,
                             .sequence_begin = cells.sequence_begin,
                             .sequences = cells.sequences,
                             .state_of = cells.state_of,
                             .next_state = cells.next_state,
                             .out = at.out,
                             .out_stride = values(),
                             .non_finite = p.ops.non_finite(),
                             .matmul = p.ops.kernels().matmul});
  p.trace("recurrence", at.out, values());
}

}  // namespace

std::unique_ptr<LayerPart> make_recurrent(const PartPlace& place) {
  return std::make_unique<Recurrent>(place);
}

}  // namespace invar
