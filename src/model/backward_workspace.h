// The memory of a backward pass.
#pragma once

#include "kernels/training.h"
#include "model/decoder.h"
#include "model/step_tables.h"

namespace invar {

// Numbers of a row in layers with a state.
struct StateWidths {
  int64_t inputs = 0, mixed = 0;  // of the input product, behind the short convolution
  int64_t values = 0, heads = 0;  // of heads with states
  int64_t key_size = 0, value_size = 0;
  int64_t decays = 0, gates = 0;  // of heads or channels; what the second product leaves

  static StateWidths of(const LayerSpec& layer, int64_t hidden);
  static StateWidths widest(const DecoderSpec& spec);
};

// Numbers of a row in layers whose attention is to latents.
struct LatentWidths {
  int64_t heads = 0;   // what the heads' matrices give or take
  int64_t normed = 0;  // of a norm
  int64_t down = 0;    // of what is made of the layer's input

  static LatentWidths widest(const DecoderSpec& spec);
};

struct BackwardWorkspace {
  // For batches of up to max_rows rows in sequences of up to max_positions, and of an adapter of
  // this rank.
  BackwardWorkspace(const Decoder& decoder, const TrainingKernels& kernels, int max_rows,
                    int max_positions, int adapter_rank = 0);

  int max_rows, max_positions;
  // Gradients of what the names say.
  DeviceArray<float> hidden;       // [T][D], the residual stream
  DeviceArray<float> normed;       // [T][D]
  DeviceArray<float> beside;       // [T][D], of a part that stands beside another
  DeviceArray<float> gated;        // [T][F]
  DeviceArray<float> attended;     // [T][H * E]
  DeviceArray<float> qkv;          // [T][(H + 2G) * E]
  DeviceArray<bf16_t> out;         // [T][D], rounded
  DeviceArray<bf16_t> wide;        // [T][the widest], rounded
  DeviceArray<float> rs;           // [T][H + G], of norms
  DeviceArray<bf16_t> transposed;  // an activation's columns as rows
  DeviceArray<bf16_t> packed;      // a product's inputs as a packed matrix
  // For layers with experts: values for each of a row's pairs, or for the rows of leaves, as the
  // names say.
  DeviceArray<bf16_t> pair_outputs;   // [T * C][D], rounded
  DeviceArray<float> pair_gated;      // [T * C][F of an expert]
  DeviceArray<float> pair_dots;       // [T * C][2F], the products of gate and up
  DeviceArray<bf16_t> pair_wide;      // [T * C][2F], rounded
  DeviceArray<float> pair_inputs;     // [T * C][D]
  DeviceArray<float> expert_weights;  // [T][C]
  DeviceArray<bf16_t> router;         // [T][experts (+ the shared one's gate)], rounded
  DeviceArray<float> shared_gates;    // [T], of the gates of the shared expert
  DeviceArray<bf16_t> leaf_outputs;   // [T][D or 2F]
  DeviceArray<bf16_t> leaf_inputs;    // [T][D or F]
  // Layers with a state use these.
  DeviceArray<float> mixed;        // [T][what a short convolution leaves]
  DeviceArray<float> sums;         // [T][the same], of its sums
  DeviceArray<float> inputs;       // [T][what the layer's input product leaves]
  DeviceArray<float> recurred;     // [T][H * V]
  DeviceArray<float> head_normed;  // [T][H * V], of the gated norm's norm
  DeviceArray<float> head_inputs;  // [T][H * V], its inputs
  DeviceArray<float> head_rs;      // [T][H]
  DeviceArray<float> decays;       // [T][H], or of channels [T][H * R]
  DeviceArray<float> factors;      // [T][H]
  DeviceArray<float> rates;        // [T][H]
  DeviceArray<float> skips;        // [T][H]
  DeviceArray<float> gates;    // [T][2H], or [T][2R + H], of the product that decays are made of
  DeviceArray<bf16_t> narrow;  // the same, rounded
  // Latent attention uses these.
  DeviceArray<float> apart;          // [T][(H + 2) * E], of latents, then of what turns
  DeviceArray<float> latent_normed;  // [T][latent, or what queries are made of], behind the norm
  DeviceArray<float> latent;         // the same before it
  DeviceArray<float> down;           // [T][all that is made of the layer's input]
  DeviceArray<float> output_gates;   // [T][H * E], of attention
  DeviceArray<std::byte> scratch;    // of attention, for each of the team
  int64_t scratch_stride;
  StepTableBuilder table_builder;

 private:
  void place_experts(const Decoder& decoder);
  void place_states(const Decoder& decoder, const StateWidths& widest);
  void place_latents(const Decoder& decoder, const LatentWidths& widest);
};

}  // namespace invar
