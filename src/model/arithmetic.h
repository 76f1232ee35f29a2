// The arithmetic that a model runs with: part of the identity of every answer (numerics 8).
#pragma once

#include <string>

#include "model/decoder_spec.h"
#include "numerics/orders.h"

namespace invar {

enum class WeightMode {
  bf16,  // weights stored as bf16
  f32,   // f32 or f16 weights, exact; activations of their products stay f32 (order portable only)
  rounded,  // f32 or f16 matrices rounded to bf16; norms and biases stay exact
};

std::string_view name_of(WeightMode mode);

struct Arithmetic {
  Order order = Order::portable;
  WeightMode weights = WeightMode::bf16;
  bool is_baseline = false;  // the conventional baseline of numerics 10

  // The format of weights and of the activations that meet them.
  DType type() const { return weights == WeightMode::f32 ? DType::f32 : DType::bf16; }
};

// Runs of the two row-parallel products (numerics 2): functions of the model's shape alone.
int attention_output_runs(const DecoderSpec& spec);
int down_runs(const DecoderSpec& spec);

// e.g. "invar-1/portable/bf16/row8.8": printed by every command, part of every receipt and
// checkpoint.
std::string identity(const Arithmetic& arithmetic, const DecoderSpec& spec);

}  // namespace invar
