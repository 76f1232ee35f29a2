// CudaOperators in Python: each method borrows tensors of the GPU, checks their types and shapes,
// and launches. Numbers that lie in the GPU's memory (tokens, positions, blocks) are not looked at.
#include <pybind11/stl.h>

#include "attention_arguments.h"
#include "cuda_operators.h"
#include "module.h"
#include "operator_checks.h"

namespace invar::python {

namespace {

// A matrix as the table of operations reads it, `count` of n outputs.
Matrix matrix_of(Borrower& b, const CudaOperators& at, const py::object& w, int64_t n, int64_t k,
                 int64_t count) {
  if (n < 1 || k < 1) fail_usage("expected a weight of some outputs, found [{}, {}]", n, k);
  Matrix matrix{.n = n, .k = k, .layout = at.kernels().weights, .count = count};
  matrix.data = b.elements(w, at.kernels().order == Order::hopper ? "BF16" : "BF16,F32",
                           {matrix.elements()}, "weight");
  matrix.type = b.dtype() == "F32" ? DType::f32 : DType::bf16;
  return matrix;
}

// Rows that enter a product with the matrix: whole leaves.
Activation input_of(Borrower& b, const py::object& x, const Matrix& w, int64_t& rows) {
  const int64_t stride = round_up(w.k, kLeafPad);
  void* data = b.elements(x, w.type == DType::f32 ? "F32" : "BF16", {-1, stride}, "x");
  rows = b.shape()[0];
  expect_rows(rows);
  return {data, w.type, stride};
}

Activation output_of(Borrower& b, const py::object& out, int64_t rows, int64_t width) {
  const int64_t stride = round_up(width, kLeafPad);
  return {b.elements(out, "BF16", {rows, stride}, "out"), DType::bf16, stride};
}

cuda::Values values_of(Borrower& b, const py::object& x, int64_t count, const char* what) {
  const void* data = b.elements(x, "F32,BF16", {count}, what);
  return {data, b.dtype() == "F32" ? DType::f32 : DType::bf16};
}

void bind_products(py::class_<CudaOperators>& c) {
  c.def("linear", [](CudaOperators& at, uintptr_t stream, const py::object& x, const py::object& w,
                     int64_t n, int64_t k, int runs, const py::object& bias, bool accumulate,
                     const py::object& y, int64_t first) {
    Borrower b(at.gpu());
    expect_runs(runs, k);
    const Matrix matrix = matrix_of(b, at, w, n, k, 1);
    int64_t rows = 0;
    const Activation from = input_of(b, x, matrix, rows);
    const float* added = b.floats_or_null(bias, {n}, "bias");
    float* to = b.floats(y, {rows, -1}, "y");
    const int64_t width = b.shape()[1];
    if (first < 0 || first + n > width)
      fail_usage("expected outputs within {} of y, found {} from {} on", width, n, first);
    at.matmul(stream, {.x = from,
                       .w = matrix,
                       .rows = rows,
                       .split_k = runs,
                       .bias = added,
                       .accumulate = accumulate,
                       .y = to + first,
                       .y_stride = width});
  });
  c.def("gated", [](CudaOperators& at, uintptr_t stream, const py::object& x, const py::object& w,
                    int64_t n, int64_t k, const py::object& gate_bias, const py::object& up_bias,
                    const std::string& curve, const py::object& out) {
    Borrower b(at.gpu());
    const Matrix pair = matrix_of(b, at, w, n, k, 2);
    if (pair.type != DType::bf16) fail_usage("expected a gated pair of bf16, found float32");
    int64_t rows = 0;
    const Activation from = input_of(b, x, pair, rows);
    const float* of_gate = b.floats_or_null(gate_bias, {n}, "bias");
    const float* of_up = b.floats_or_null(up_bias, {n}, "bias");
    at.gated_matmul(stream, {.x = from,
                             .gate_up = pair,
                             .rows = rows,
                             .gate_bias = of_gate,
                             .up_bias = of_up,
                             .out = output_of(b, out, rows, n),
                             .curve = curve_of(curve)});
  });
}

void bind_norm(py::class_<CudaOperators>& c) {
  c.def("rms_norm", [](CudaOperators& at, uintptr_t stream, const py::object& x,
                       const py::object& weight, float eps, bool rounds, const py::object& out) {
    Borrower b(at.gpu());
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], width = b.shape()[1];
    expect_rows(rows);
    // The kernel's rows lie in shared memory, and their weights.
    if (width < 1 || width > 6144 * 4) fail_usage("expected rows of 1 to 24576, found {}", width);
    const float* w = b.floats(weight, {width}, "weight");
    const Activation to = rounds
                              ? output_of(b, out, rows, width)
                              : Activation{b.floats(out, {rows, width}, "out"), DType::f32, width};
    at.rms_norm(stream, {.x = from,
                         .x_stride = width,
                         .rows_of = nullptr,
                         .weight = w,
                         .eps = eps,
                         .rows = rows,
                         .width = width,
                         .out = to,
                         .keeps_pad = !rounds});
  });
}

void bind_rows(py::class_<CudaOperators>& c) {
  c.def("round",
        [](CudaOperators& at, uintptr_t stream, const py::object& x, const py::object& out) {
          Borrower b(at.gpu());
          const float* from = b.floats(x, {-1, -1}, "x");
          const int64_t rows = b.shape()[0], width = b.shape()[1];
          expect_rows(rows);
          at.round(stream, {.x = from,
                            .x_stride = width,
                            .rows_of = nullptr,
                            .rows = rows,
                            .width = width,
                            .out = output_of(b, out, rows, width)});
        });
  c.def("rounded",
        [](CudaOperators& at, uintptr_t stream, const py::object& x, const py::object& out) {
          Borrower b(at.gpu());
          float* to = b.floats(out, {-1}, "out");
          const int64_t count = b.shape()[0];
          at.rounded(stream, values_of(b, x, count, "a vector"), count, to);
        });
  c.def("embedding", [](CudaOperators& at, uintptr_t stream, const py::object& tokens,
                        const py::object& table, const py::object& out) {
    Borrower b(at.gpu());
    const int32_t* ids = b.integers(tokens, {-1}, "tokens");
    const int64_t rows = b.shape()[0];
    expect_rows(rows);
    const void* from = b.elements(table, "BF16", {-1, -1}, "table");
    const int64_t vocab = b.shape()[0], width = b.shape()[1];
    if (width % kLeafPad != 0) fail_usage("expected rows of whole leaves, found {}", width);
    const Matrix matrix{.data = from, .n = vocab, .k = width, .layout = WeightLayout::rows};
    at.embed(
        stream,
        {.tokens = ids, .table = matrix, .rows = rows, .out = b.floats(out, {rows, width}, "out")});
  });
  c.def("rope", [](CudaOperators& at, uintptr_t stream, const py::object& x, int32_t heads,
                   const py::object& positions, const py::object& cos, const py::object& sin) {
    Borrower b(at.gpu());
    float* to = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], width = b.shape()[1];
    expect_rows(rows);
    if (heads < 1 || width % (2 * int64_t{heads}) != 0)
      fail_usage("expected heads of an even size, found {} in {}", heads, width);
    const auto e = static_cast<int32_t>(width / heads);
    const int32_t* of_rows = b.integers(positions, {rows}, "positions");
    const float* c = b.floats(cos, {-1, e / 2}, "cos");
    const float* s = b.floats(sin, {b.shape()[0], e / 2}, "sin");
    at.rope(stream, {.x = to,
                     .x_stride = width,
                     .rows = rows,
                     .heads = heads,
                     .head_dim = e,
                     .positions = of_rows,
                     .cos = c,
                     .sin = s});
  });
  c.def("gate", [](CudaOperators& at, uintptr_t stream, const py::object& g, const py::object& u,
                   const std::string& curve, const py::object& out) {
    Borrower b(at.gpu());
    auto* to = static_cast<bf16_t*>(b.elements(out, "BF16", {-1}, "out"));
    const int64_t count = b.shape()[0];
    const cuda::Values gate = values_of(b, g, count, "gate"), up = values_of(b, u, count, "up");
    at.gate(stream, gate, up, count, curve_of(curve), to);
  });
}

void bind_sums(py::class_<CudaOperators>& c) {
  c.def("log_sum_exp", [](CudaOperators& at, uintptr_t stream, const py::object& x,
                          const py::object& argmax, const py::object& max,
                          const py::object& log_sum, const py::object& has_nan) {
    Borrower b(at.gpu());
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], width = b.shape()[1];
    expect_rows(rows);
    at.log_sum_exp(stream,
                   {.logits = from,
                    .rows = rows,
                    .stride = width,
                    .vocab = width,
                    .argmax = static_cast<int32_t*>(b.elements(argmax, "I32", {rows}, "argmax")),
                    .max = b.floats(max, {rows}, "max"),
                    .log_sum = b.floats(log_sum, {rows}, "log_sum"),
                    .has_nan = static_cast<bool*>(b.elements(has_nan, "BOOL", {rows}, "has_nan"))});
  });
  c.def("mean",
        [](CudaOperators& at, uintptr_t stream, const py::object& x, const py::object& out) {
          Borrower b(at.gpu());
          const float* from = b.floats(x, {-1, -1}, "x");
          const int64_t rows = b.shape()[0], width = b.shape()[1];
          expect_rows(rows);
          at.mean(stream, from, rows, width, b.floats(out, {rows}, "out"));
        });
}

cuda::PlacesParams places_of(Borrower& b, const py::dict& given) {
  cuda::PlacesParams p{.offsets = b.integers(given["offsets"], {-1}, "offsets")};
  p.rows = b.shape()[0];
  p.table_of = b.integers(given["table_of"], {p.rows}, "table_of");
  p.starts = b.integers(given["starts"], {-1}, "starts");
  p.sequences = b.shape()[0];
  p.tables = b.integers(given["kept"], {p.sequences, -1}, "tables");
  p.width = b.shape()[1];
  p.block_size = given["block_size"].cast<int32_t>();
  expect_block_size(p.block_size);
  const auto out = [&](const char* name) {
    return static_cast<int32_t*>(b.elements(given[name], "I32", {p.rows}, name));
  };
  p.positions = out("positions");
  p.write_block = out("write_block");
  p.write_slot = out("write_slot");
  p.addresses =
      static_cast<const int32_t**>(b.elements(given["tables"], "I64", {p.sequences}, "tables"));
  return p;
}

size_t scratch_words(const CudaOperators& at) {
  return at.kernels().attention_scratch / sizeof(float);
}

}  // namespace

void bind_cuda_operators(py::module_& m) {
  py::class_<CudaOperators> c(m, "CudaOperators");
  c.def(py::init<const std::string&, int>(), py::call_guard<py::gil_scoped_release>());
  c.def("scratch_words",
        [](const CudaOperators& at) { return at.kernels().attention_scratch / sizeof(float); });
  bind_cuda_backward(c);
  bind_products(c);
  bind_norm(c);
  bind_rows(c);
  bind_sums(c);
  c.def("place_rows", [](CudaOperators& at, uintptr_t stream, const py::dict& given) {
    Borrower b(at.gpu());
    at.place_rows(stream, places_of(b, given));
  });
  c.def("attention", [](CudaOperators& at, uintptr_t stream, const py::dict& given) {
    Borrower b(at.gpu());
    const QkvParams rotation = rotation_of(b, at.kernels().cache, given);
    AttentionParams attention = attention_of(b, given, rotation);
    if (const auto words = static_cast<int64_t>(scratch_words(at)))
      attention.scratch = b.floats(given["scratch"], {words}, "scratch");
    at.attention(stream, {rotation, attention});
  });
}

}  // namespace invar::python
