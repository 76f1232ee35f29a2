// Elementwise operations for the table of kernels: which rows, which heads, which slots of the
// cache. The work inside a row is one of the sets' RowFunctions.
#pragma once

#include "kernels/cpu/row_functions.h"
#include "kernels/inference.h"

namespace invar::cpu {

void embed(const RowFunctions& rows, const EmbedParams& p, const Execution& on);
void copy_slots(const CopySlotsParams& p,
                const Execution& on);  // bound by memory: the same for every set
void load_slots(const LoadSlotsParams& p, const Execution& on);
void rms_norm(const RowFunctions& rows, const RmsNormParams& p, const Execution& on);
void layer_norm(const RowFunctions& rows, const LayerNormParams& p, const Execution& on);
void curve(const RowFunctions& rows, const CurveParams& p, const Execution& on);
void gate_inputs(const RowFunctions& rows, const GateInputsParams& p, const Execution& on);
void scale_rows(const RowFunctions& rows, const ScaleRowsParams& p, const Execution& on);
void scale_logits(const RowFunctions& rows, const ScaleLogitsParams& p, const Execution& on);
void add(const RowFunctions& rows, const AddParams& p, const Execution& on);
void qkv(const RowFunctions& rows, const QkvParams& p, const Execution& on);
void qkv_product(void (*matmul)(const MatmulParams&, const Execution&), const RowFunctions& rows,
                 const QkvProductParams& p, const Execution& on);
void log_sum_exp(const RowFunctions& rows, const LogitsParams& p, const Execution& on);

// Puts the operations of a set into the table; they are the same in every order.
template <const RowFunctions& rows>
void override_elementwise(Kernels& kernels) {
  kernels.embed = [](const EmbedParams& p, const Execution& on) { embed(rows, p, on); };
  kernels.copy_slots = copy_slots;
  kernels.load_slots = load_slots;
  kernels.rms_norm = [](const RmsNormParams& p, const Execution& on) { rms_norm(rows, p, on); };
  kernels.layer_norm = [](const LayerNormParams& p, const Execution& on) {
    layer_norm(rows, p, on);
  };
  kernels.curve = [](const CurveParams& p, const Execution& on) { curve(rows, p, on); };
  kernels.gate_inputs = [](const GateInputsParams& p, const Execution& on) {
    gate_inputs(rows, p, on);
  };
  kernels.scale_rows = [](const ScaleRowsParams& p, const Execution& on) {
    scale_rows(rows, p, on);
  };
  kernels.add_norm = nullptr;  // passes over memory that the cores' caches hold
  kernels.scale_logits = [](const ScaleLogitsParams& p, const Execution& on) {
    scale_logits(rows, p, on);
  };
  kernels.add = [](const AddParams& p, const Execution& on) { add(rows, p, on); };
  kernels.qkv = [](const QkvParams& p, const Execution& on) { qkv(rows, p, on); };
  kernels.log_sum_exp = [](const LogitsParams& p, const Execution& on) {
    log_sum_exp(rows, p, on);
  };
}

// The set's products, of what the order adds up, of integers and of e4m3 numbers.
template <void (*matmul)(const MatmulParams&, const Execution&),
          void (*int8_matmul)(const MatmulParams&, const Execution&),
          void (*fp8_matmul)(const MatmulParams&, const Execution&), const RowFunctions& rows,
          Order order = Order::portable>
void override_qkv_product(Kernels& kernels) {
  if (kernels.order != order) return;
  kernels.qkv_product = [](const QkvProductParams& p, const Execution& on) {
    const auto product = p.w.type == DType::i8 ? int8_matmul
                         : is_e4m3(p.w.type)   ? fp8_matmul
                                               : matmul;
    qkv_product(product, rows, p, on);
  };
}

}  // namespace invar::cpu
