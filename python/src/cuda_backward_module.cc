// The backwards of CudaOperators in Python: what python/invar/torch/cuda_backward.py is made of.
#include <pybind11/stl.h>

#include "attention_arguments.h"
#include "cuda_operators.h"
#include "module.h"
#include "operator_checks.h"

namespace invar::python {

namespace {

// Rows that a sum goes over: whole leaves.
void expect_leaves(int64_t rows) {
  expect_rows(rows);
  if (rows % kLeafPad != 0) fail_usage("expected rows of whole leaves of 32, found {}", rows);
}

// Rows of bf16 with whatever stands behind their columns.
Activation rows_of(Borrower& b, const py::object& x, int64_t& rows, const char* what) {
  void* data = b.elements(x, "BF16", {-1, -1}, what);
  rows = b.shape()[0];
  expect_rows(rows);
  return {data, DType::bf16, b.shape()[1]};
}

// Columns [first, first + count) of a row, or (pair 0 or 1) one matrix of a pair.
Columns columns_of(int64_t first, int64_t count, int pair, int64_t width) {
  const Columns columns{first, count, pair};
  if (pair < -1 || pair > 1 || first < 0 || count < 1 || columns.at(count - 1) >= width)
    fail_usage("expected columns within {}, found {} from {} on", width, count, first);
  return columns;
}

void bind_layouts(py::class_<CudaOperators>& c) {
  c.def("pack_columns", [](CudaOperators& at, uintptr_t stream, const py::object& x, int64_t width,
                           int64_t first, int pair, int64_t inner_size, const py::object& out) {
    Borrower b(at.gpu());
    int64_t rows = 0;
    const Activation from = rows_of(b, x, rows, "x");
    if (width < 1 || width > from.stride)
      fail_usage("expected 1 to {} columns, found {}", from.stride, width);
    const WeightLayout layout = at.kernels().weights;
    const Matrix matrix{.n = width, .k = inner_size, .layout = layout};
    at.train(stream, &TrainingKernels::pack_columns,
             {.x = static_cast<const bf16_t*>(from.data),
              .x_stride = from.stride,
              .rows = rows,
              .width = width,
              .inner = columns_of(first, rows, pair, inner_size),
              .inner_size = inner_size,
              .out = static_cast<bf16_t*>(b.elements(out, "BF16", {matrix.elements()}, "out")),
              .layout = layout});
  });
  c.def("transpose", [](CudaOperators& at, uintptr_t stream, const py::object& x, int64_t first,
                        int64_t count, int pair, const py::object& out) {
    Borrower b(at.gpu());
    int64_t rows = 0;
    const Activation from = rows_of(b, x, rows, "x");
    expect_leaves(rows);
    at.train(stream, &TrainingKernels::transpose,
             {.x = from,
              .rows = rows,
              .columns = columns_of(first, count, pair, from.stride),
              .out = {b.elements(out, "BF16", {count, rows}, "out"), DType::bf16, rows}});
  });
}

void bind_gradients(py::class_<CudaOperators>& c) {
  c.def("extend", [](CudaOperators& at, uintptr_t stream, const py::object& x, const py::object& w,
                     const py::object& y) {
    Borrower b(at.gpu());
    int64_t outputs = 0;
    const Activation from = rows_of(b, x, outputs, "x");
    float* to = b.floats(y, {outputs, -1}, "y");
    Matrix matrix{.n = b.shape()[1], .k = from.stride, .layout = at.kernels().weights};
    matrix.data = b.elements(w, "BF16", {matrix.elements()}, "inputs");
    at.train(
        stream, &TrainingKernels::extend_matmul,
        {.x = from, .w = matrix, .rows = outputs, .split_k = 1, .y = to, .y_stride = matrix.n});
  });
  c.def("bias_gradient", [](CudaOperators& at, uintptr_t stream, const py::object& dy,
                            int64_t first, int pair, const py::object& gradient) {
    Borrower b(at.gpu());
    int64_t rows = 0;
    const Activation from = rows_of(b, dy, rows, "dy");
    expect_leaves(rows);
    float* to = b.floats(gradient, {-1}, "gradient");
    at.train(stream, &TrainingKernels::bias_gradient,
             {.dy = from,
              .rows = rows,
              .columns = columns_of(first, b.shape()[0], pair, from.stride),
              .gradient = to});
  });
  c.def("embedding_gradient", [](CudaOperators& at, uintptr_t stream, const py::object& tokens,
                                 const py::object& dx, const py::object& gradient) {
    Borrower b(at.gpu());
    const int32_t* ids = b.integers(tokens, {-1}, "tokens");
    const int64_t rows = b.shape()[0];
    expect_rows(rows);
    float* to = b.floats(gradient, {-1, -1}, "gradient");
    const int64_t width = b.shape()[1];
    at.train(stream, &TrainingKernels::embed_gradient,
             {.tokens = ids,
              .dx = b.floats(dx, {rows, width}, "dx"),
              .rows = rows,
              .width = width,
              .gradient = to});
  });
  c.def("loss_gradient", [](CudaOperators& at, uintptr_t stream, const py::object& logits,
                            const py::object& targets, const py::object& max,
                            const py::object& log_sum, const py::object& weights,
                            const py::object& out) {
    Borrower b(at.gpu());
    const float* from = b.floats(logits, {-1, -1}, "logits");
    const int64_t rows = b.shape()[0], vocab = b.shape()[1], stride = round_up(vocab, kLeafPad);
    expect_rows(rows);
    at.train(stream, &TrainingKernels::loss,
             {.logits = from,
              .rows = rows,
              .stride = vocab,
              .vocab = vocab,
              .max = b.floats(max, {rows}, "max"),
              .log_sum = b.floats(log_sum, {rows}, "log_sum"),
              .targets = b.integers(targets, {rows}, "targets"),
              .weights = b.floats(weights, {rows}, "weights"),
              .out = {b.elements(out, "BF16", {rows, stride}, "out"), DType::bf16, stride}});
  });
}

void bind_curves(py::class_<CudaOperators>& c) {
  // Dots [T, 2 * F up to 16]: of gate from 0 on, of up from F up to 8 on.
  c.def("gate_backward", [](CudaOperators& at, uintptr_t stream, const py::object& dots,
                            const py::object& gate_bias, const py::object& up_bias,
                            const py::object& d, const std::string& curve, const py::object& out) {
    Borrower b(at.gpu());
    const float* from = b.floats(d, {-1, -1}, "d");
    const int64_t rows = b.shape()[0], f = b.shape()[1], both = 2 * round_up(f, kPanelWidth);
    const int64_t stride = round_up(both, kLeafPad);
    expect_rows(rows);
    at.train(stream, &TrainingKernels::gate_backward,
             {.gate_up = b.floats(dots, {rows, both}, "dots"),
              .gate_bias = b.floats_or_null(gate_bias, {f}, "bias"),
              .up_bias = b.floats_or_null(up_bias, {f}, "bias"),
              .d_gated = from,
              .rows = rows,
              .width = f,
              .out = {b.elements(out, "BF16", {rows, stride}, "out"), DType::bf16, stride},
              .curve = curve_of(curve),
              .layout = WeightLayout::rows});
  });
  c.def("gate_gradients", [](CudaOperators& at, uintptr_t stream, const py::object& d,
                             const py::object& g, const py::object& u, const std::string& curve,
                             const py::object& dg, const py::object& du) {
    Borrower b(at.gpu());
    const float* from = b.floats(d, {-1}, "d");
    const int64_t count = b.shape()[0];
    at.gate_gradients(stream, {.d = from,
                               .g = b.floats(g, {count}, "gate"),
                               .u = b.floats(u, {count}, "up"),
                               .count = count,
                               .curve = curve_of(curve),
                               .dg = b.floats(dg, {count}, "dg"),
                               .du = b.floats(du, {count}, "du")});
  });
}

void bind_norms(py::class_<CudaOperators>& c) {
  c.def("norm_backward",
        [](CudaOperators& at, uintptr_t stream, const py::object& dy, const py::object& x,
           const py::object& weight, float eps, const py::object& dx, const py::object& rs) {
          Borrower b(at.gpu());
          const float* from = b.floats(dy, {-1, -1}, "dy");
          const int64_t rows = b.shape()[0], width = b.shape()[1];
          expect_rows(rows);
          at.train(stream, &TrainingKernels::norm_backward,
                   {.dy = from,
                    .x = b.floats(x, {rows, width}, "x"),
                    .weight = b.floats(weight, {width}, "weight"),
                    .eps = eps,
                    .rows = rows,
                    .width = width,
                    .dx = b.floats(dx, {rows, width}, "dx"),
                    .rs = b.floats(rs, {rows}, "rs")});
        });
  // `heads` vectors of a row from element `first` on; rs of the first one stands at rs_first.
  c.def("norm_gradient", [](CudaOperators& at, uintptr_t stream, const py::object& dy,
                            const py::object& x, const py::object& rs, int64_t first,
                            int64_t rs_first, int64_t heads, const py::object& gradient) {
    Borrower b(at.gpu());
    float* to = b.floats(gradient, {-1}, "gradient");
    const int64_t width = b.shape()[0];
    const float* from = b.floats(dy, {-1, -1}, "dy");
    const int64_t rows = b.shape()[0], all = b.shape()[1];
    expect_leaves(rows);
    const float* inputs = b.floats(x, {rows, all}, "x");
    const float* roots = b.floats(rs, {rows, -1}, "rs");
    const int64_t stride = b.shape()[1];
    if (heads < 1 || first < 0 || first + heads * width > all || rs_first < 0 ||
        rs_first + heads > stride)
      fail_usage("expected vectors within {} elements, found {} of {}", all, heads, width);
    at.train(stream, &TrainingKernels::norm_gradient,
             {.dy = from + first,
              .dy_stride = all,
              .x = inputs + first,
              .x_stride = all,
              .rs = roots + rs_first,
              .rs_stride = stride,
              .rows = rows,
              .heads = heads,
              .width = width,
              .gradient = to});
  });
}

// d_heads [T, W] becomes the gradient of what the heads' norms gave; d_qkv [T, W up to 32] that of
// the products, rounded.
CudaAttentionBackward backward_of(Borrower& b, const CudaOperators& at, const py::dict& given) {
  CudaAttentionBackward p{.rotation = rotation_of(b, at.kernels().cache, given)};
  const QkvParams& r = p.rotation;
  const int64_t rows = r.rows, width = r.qkv_stride, stride = round_up(width, kLeafPad);
  AttentionBackwardParams& a = p.attention;
  a.forward = attention_of(b, given, r);
  const int64_t attended = a.forward.out.stride;
  a.max = b.floats(given["max"], {rows, r.heads}, "max");
  a.sum = b.floats(given["sum"], {rows, r.heads}, "sum");
  a.d_out = {b.elements(given["d_out"], "BF16", {rows, attended}, "d_out"), DType::bf16, attended};
  a.max_positions = rows;
  a.d_qkv = b.floats(given["d_heads"], {rows, width}, "d_heads");
  a.d_qkv_stride = width;
  p.heads = {
      .d_qkv = a.d_qkv,
      .d_qkv_stride = width,
      .qkv = r.q_norm ? r.qkv : nullptr,
      .qkv_stride = width,
      .rows = rows,
      .heads = r.heads,
      .kv_heads = r.kv.kv_heads,
      .head_dim = r.kv.head_dim,
      .q_norm = r.q_norm,
      .k_norm = r.k_norm,
      .norm_eps = r.norm_eps,
      .positions = r.positions,
      .cos = r.cos,
      .sin = r.sin,
      .rs = b.floats(given["rs"], {rows, r.heads + r.kv.kv_heads}, "rs"),
      .out = {b.elements(given["d_qkv"], "BF16", {rows, stride}, "d_qkv"), DType::bf16, stride}};
  if (r.kv.head_dim > 256)
    fail_usage("expected heads of at most 256 elements for a backward, found {}", r.kv.head_dim);
  return p;
}

}  // namespace

void bind_cuda_backward(py::class_<CudaOperators>& c) {
  bind_layouts(c);
  bind_gradients(c);
  bind_curves(c);
  bind_norms(c);
  c.def("attention_backward", [](CudaOperators& at, uintptr_t stream, const py::dict& given) {
    Borrower b(at.gpu());
    at.attention_backward(stream, backward_of(b, at, given));
  });
}

}  // namespace invar::python
