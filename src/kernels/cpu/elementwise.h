// Elementwise operations for the table of kernels: which rows, which heads, which places of the
// cache. What happens inside a row is one of the sets' RowFunctions.
#pragma once

#include "kernels/cpu/row_functions.h"
#include "kernels/kernels.h"

namespace invar::cpu {

void embed(const EmbedParams& p, Part part);  // bound by memory: the same for every set
void rms_norm(const RowFunctions& rows, const RmsNormParams& p, Part part);
void qkv(const RowFunctions& rows, const QkvParams& p, Part part);
void qkv_product(void (*matmul)(const MatmulParams&, Part), const RowFunctions& rows,
                 const QkvProductParams& p, Part part);
void log_sum_exp(const RowFunctions& rows, const LogitsParams& p, Part part);

// Puts the operations of a set into the table; they are the same in every order.
template <const RowFunctions& rows>
void override_elementwise(Kernels& kernels) {
  kernels.embed = embed;
  kernels.rms_norm = [](const RmsNormParams& p, Part part) { rms_norm(rows, p, part); };
  kernels.qkv = [](const QkvParams& p, Part part) { qkv(rows, p, part); };
  kernels.log_sum_exp = [](const LogitsParams& p, Part part) { log_sum_exp(rows, p, part); };
}

// `matmul` is the set's product.
template <void (*matmul)(const MatmulParams&, Part), const RowFunctions& rows>
void override_qkv_product(Kernels& kernels) {
  if (kernels.order != Order::portable) return;
  kernels.qkv_product = [](const QkvProductParams& p, Part part) {
    qkv_product(matmul, rows, p, part);
  };
}

}  // namespace invar::cpu
