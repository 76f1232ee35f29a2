#include "model/parts/recurrent_heads.h"

namespace invar {

RecurrentMemory RecurrentHeads::memory_of(CellArrays& chunks, CellArrays& states,
                                          DType type) const {
  RecurrentMemory memory{.layer = {.kind = kind,
                                   .key_heads = key_heads,
                                   .heads = heads,
                                   .key_size = key_size,
                                   .value_size = value_size,
                                   .type = type}};
  RecurrentLayer& layer = memory.layer;
  const int64_t element = size_of(type);
  layer.keys = chunks.take(key_heads * layer.key_elements() * element);
  layer.values = chunks.take(heads * layer.value_elements() * element);
  layer.sums = chunks.take(heads * layer.sum_elements() * size_of(DType::f32));
  memory.inputs = chunks.take(kChunkSlots * mixed() * element);
  layer.states = states.take(heads * layer.state_elements() * size_of(DType::f32));
  if (type == DType::bf16) layer.operands = states.take(heads * layer.state_elements() * element);
  memory.before = states.take((taps - 1) * mixed() * element);
  return memory;
}

StateShape RecurrentHeads::state() const {
  return cells_of(
      [&](CellArrays& chunks, CellArrays& states, DType type) { memory_of(chunks, states, type); });
}

RecurrentArrays RecurrentHeads::place(ActivationMemory& memory) const {
  RecurrentArrays at;
  const int64_t padded = round_up(mixed(), kLeafPad);
  at.mixed = {memory.array<float>(padded), DType::f32, padded};
  at.decays = memory.array<float>(heads * channels());
  at.factors = memory.array<float>(heads);
  at.q = memory.heads(key_heads, key_size);
  at.k = memory.heads(key_heads, key_size);
  at.out = memory.array<float>(values());
  return at;
}

RecurrentMemory RecurrentHeads::begin(const PartPass& p) const {
  CellArrays chunks(p.chunks), states(p.states);
  RecurrentMemory memory = memory_of(chunks, states, p.ops.arithmetic().heads());
  memory.layer.layout = p.ops.kernels().cache;
  copy_chunks(p);
  return memory;
}

void RecurrentHeads::convolve(const PartPass& p, const RecurrentArrays& at,
                              const RecurrentMemory& memory, const Convolution& convolution) const {
  const CellTables& cells = p.ops.tables().cells;
  p.ops.run("short conv", p.ops.kernels().short_conv,
            ShortConvParams{.x = convolution.x,
                            .x_stride = convolution.x_stride,
                            .factor = nullptr,
                            .factor_stride = 0,
                            .places = places_of(p),
                            .sequences = cells.sequences,
                            .channels = mixed(),
                            .taps = taps,
                            .weight = convolution.weight,
                            .bias = convolution.bias,
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
  p.trace("short conv", at.mixed, mixed());
}

RecurrentGatesParams RecurrentHeads::gates_of(int64_t rows, const RecurrentArrays& at,
                                              const Gates& gates) const {
  return {.kind = kind,
          .a = gates.a,
          .a_stride = gates.a_stride,
          .z = gates.z,
          .z_stride = gates.z_stride,
          .log_rate = gates.log_rate,
          .bias = gates.bias,
          .rows = rows,
          .heads = heads,
          .channels = channels(),
          .doubles = gates.doubles,
          .least = gates.least,
          .most = gates.most,
          .decays = at.decays,
          .factors = at.factors};
}

void RecurrentHeads::gate(const PartPass& p, const RecurrentArrays& at, const Gates& gates) const {
  p.ops.run("recurrent gates", p.ops.kernels().recurrent_gates, gates_of(p.rows, at, gates));
}

void RecurrentHeads::recur(const PartPass& p, const RecurrentArrays& at,
                           const RecurrentMemory& memory, const float* skips) const {
  const CellTables& cells = p.ops.tables().cells;
  const float* mixed = static_cast<const float*>(at.mixed.data);
  const bool is_delta = kind != Recurrence::state_space;
  p.ops.run("recurrent keys", p.ops.kernels().recurrent_keys,
            RecurrentKeysParams{.queries = mixed,
                                .keys = mixed + keys(),
                                .stride = at.mixed.stride,
                                .normalises = is_delta,
                                .eps = kKeyEps,
                                .scale = query_scale(),
                                .layer = memory.layer,
                                .places = places_of(p),
                                .q = at.q,
                                .k = at.k,
                                .non_finite = p.ops.non_finite()});
  p.ops.run("recurrence", p.ops.kernels().recurrence,
            RecurrenceParams{.layer = memory.layer,
                             .places = places_of(p),
                             .q = at.q,
                             .k = at.k,
                             .v = mixed + 2 * keys(),
                             .v_stride = at.mixed.stride,
                             .decays = at.decays,
                             .factors = at.factors,
                             .skips = skips,
                             .sequence_begin = cells.sequence_begin,
                             .sequences = cells.sequences,
                             .state_of = cells.state_of,
                             .next_state = cells.next_state,
                             .out = at.out,
                             .out_stride = values(),
                             .non_finite = p.ops.non_finite(),
                             .matmul = p.ops.kernels().matmul,
                             .scratch = p.ops.attention_scratch()});
  p.trace("recurrence", at.out, values());
}

}  // namespace invar
