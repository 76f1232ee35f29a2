// Operators in Python: each method borrows tensors, checks their shapes, and computes without the
// GIL.
#include <pybind11/stl.h>

#include "attention_arguments.h"
#include "base/error.h"
#include "module.h"
#include "operator_checks.h"
#include "operators.h"

namespace invar::python {

namespace {

// (weight [n][K], bias [n] or None), or with the gradients that are added to, or None, behind them.
using Weights = std::vector<std::vector<py::object>>;

std::vector<Weight> weights_of(Borrower& borrower, const Weights& given, int64_t k) {
  if (given.empty() || given.size() > 64)
    fail_usage("expected 1 to 64 weights, found {}", given.size());
  std::vector<Weight> weights;
  for (const auto& parts : given) {
    if (parts.size() != 2 && parts.size() != 4)
      fail_usage("expected a weight and its bias, and their gradients or none, found {} values",
                 parts.size());
    Weight& one = weights.emplace_back();
    one.w = borrower.floats(parts[0], {-1, k}, "weight");
    one.n = borrower.shape()[0];
    one.bias = borrower.floats_or_null(parts[1], {one.n}, "bias");
    if (parts.size() == 2) continue;
    one.gradient = borrower.floats_or_null(parts[2], {one.n, k}, "the gradient of a weight");
    one.bias_gradient = borrower.floats_or_null(parts[3], {one.n}, "the gradient of a bias");
  }
  return weights;
}

int64_t outputs_of(const std::vector<Weight>& weights) {
  int64_t n = 0;
  for (const Weight& one : weights) n += one.n;
  return n;
}

void expect_below(const int32_t* numbers, int64_t count, int64_t end, const char* what) {
  for (int64_t i = 0; i < count; ++i)
    if (numbers[i] < 0 || numbers[i] >= end)
      fail_usage("expected {} from 0 to {}, found {}", what, end - 1, numbers[i]);
}

// The keywords of attention, beside its tensors.
AttentionShape attention_of(Borrower& borrower, const py::dict& given) {
  AttentionShape shape;
  shape.lengths = given["lengths"].cast<std::vector<int32_t>>();
  shape.heads = given["heads"].cast<int32_t>();
  shape.kv_heads = given["kv_heads"].cast<int32_t>();
  shape.head_dim = given["head_dim"].cast<int32_t>();
  shape.window = given["window"].cast<int32_t>();
  shape.eps = given["eps"].cast<float>();
  shape.score_scale = given["score_scale"].cast<double>();
  shape.score_cap = given["score_cap"].cast<float>();
  if (shape.lengths.empty() || std::ranges::any_of(shape.lengths, [](int32_t n) { return n < 1; }))
    fail_usage("expected sequences of at least one row each");
  expect_heads(shape.heads, shape.kv_heads, shape.head_dim, shape.window);
  const int64_t e = shape.head_dim;
  shape.q_norm = borrower.floats_or_null(given["q_norm"], {e}, "q_norm");
  shape.k_norm = borrower.floats_or_null(given["k_norm"], {e}, "k_norm");
  if ((shape.q_norm == nullptr) != (shape.k_norm == nullptr))
    fail_usage("expected both norms of queries and keys, or none");
  shape.cos = borrower.floats(given["cos"], {-1, e / 2}, "cos");
  const int64_t positions = borrower.shape()[0];
  shape.sin = borrower.floats(given["sin"], {positions, e / 2}, "sin");
  // Behind the last sequence up to 31 rows fill a leaf up.
  if (positions < std::max(shape.longest(), kLeafPad))
    fail_usage("expected cosines of {} positions, found {}", std::max(shape.longest(), kLeafPad),
               positions);
  expect_rows(shape.rows());
  return shape;
}

template <typename Task>
void compute(Task task) {
  const py::gil_scoped_release without;
  task();
}

void bind_products(py::class_<Operators>& c) {
  c.def("linear", [](Operators& at, const py::object& x, const Weights& weights, int split_k,
                     const py::object& residual, const py::object& y) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], k = b.shape()[1];
    expect_rows(rows);
    const std::vector<Weight> all = weights_of(b, weights, k);
    const int64_t n = outputs_of(all);
    const float* before = b.floats_or_null(residual, {rows, n}, "residual");
    float* to = b.floats(y, {rows, n}, "y");
    compute([&] { at.linear(from, rows, k, all, split_k, before, to); });
  });
  c.def("linear_backward", [](Operators& at, const py::object& dy, const py::object& x,
                              const Weights& weights, const py::object& dx) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], k = b.shape()[1];
    expect_rows(rows);
    const std::vector<Weight> all = weights_of(b, weights, k);
    const float* d = b.floats(dy, {rows, outputs_of(all)}, "dy");
    float* to = b.floats_or_null(dx, {rows, k}, "dx");
    compute([&] { at.linear_backward(d, from, rows, k, all, to); });
  });
  c.def("matmul_f32", [](Operators& at, const py::object& x, const py::object& w,
                         const py::object& bias, const py::object& y) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], k = b.shape()[1];
    expect_rows(rows);
    const float* weight = b.floats(w, {-1, k}, "w");
    const int64_t n = b.shape()[0];
    const float* added = b.floats_or_null(bias, {n}, "bias");
    float* to = b.floats(y, {rows, n}, "y");
    compute([&] { at.matmul_f32(from, weight, added, rows, k, n, to); });
  });
  c.def("gated", [](Operators& at, const py::object& x, const Weights& weights,
                    const std::string& curve, const py::object& out, const py::object& dots) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], k = b.shape()[1];
    expect_rows(rows);
    const std::vector<Weight> pair = weights_of(b, weights, k);
    if (pair.size() != 2 || pair[0].n != pair[1].n) fail_usage("expected gate and up of one width");
    float* to = b.floats(out, {rows, pair[0].n}, "out");
    float* kept = b.floats(dots, {rows, 2 * round_up(pair[0].n, kPanelWidth)}, "dots");
    const Nonlinearity which = curve_of(curve);
    compute([&] { at.gated(from, rows, k, pair[0], pair[1], which, to, kept); });
  });
  c.def("gated_backward", [](Operators& at, const py::object& d, const py::object& x,
                             const py::object& dots, const Weights& weights,
                             const std::string& curve, const py::object& dx) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], k = b.shape()[1];
    expect_rows(rows);
    const std::vector<Weight> pair = weights_of(b, weights, k);
    if (pair.size() != 2 || pair[0].n != pair[1].n) fail_usage("expected gate and up of one width");
    const float* gradient = b.floats(d, {rows, pair[0].n}, "d");
    const float* kept = b.floats(dots, {rows, 2 * round_up(pair[0].n, kPanelWidth)}, "dots");
    float* to = b.floats_or_null(dx, {rows, k}, "dx");
    const Nonlinearity which = curve_of(curve);
    compute([&] { at.gated_backward(gradient, from, kept, rows, k, pair[0], pair[1], which, to); });
  });
}

void bind_rows(py::class_<Operators>& c) {
  c.def("embedding", [](Operators& at, const py::object& tokens, const py::object& table,
                        const py::object& out) {
    Borrower b;
    const int32_t* ids = b.integers(tokens, {-1}, "tokens");
    const int64_t rows = b.shape()[0];
    const float* from = b.floats(table, {-1, -1}, "table");
    const int64_t vocab = b.shape()[0], width = b.shape()[1];
    float* to = b.floats(out, {rows, width}, "out");
    expect_below(ids, rows, vocab, "tokens");
    compute([&] { at.embedding(ids, rows, from, width, to); });
  });
  c.def("embedding_backward", [](Operators& at, const py::object& tokens, const py::object& dx,
                                 const py::object& gradient) {
    Borrower b;
    const int32_t* ids = b.integers(tokens, {-1}, "tokens");
    const int64_t rows = b.shape()[0];
    float* to = b.floats(gradient, {-1, -1}, "gradient");
    const int64_t vocab = b.shape()[0], width = b.shape()[1];
    const float* from = b.floats(dx, {rows, width}, "dx");
    expect_below(ids, rows, vocab, "tokens");
    compute([&] { at.embedding_backward(ids, rows, from, width, to); });
  });
  c.def("rms_norm", [](Operators& at, const py::object& x, const py::object& weight, float eps,
                       bool rounds, const py::object& out) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], width = b.shape()[1];
    expect_rows(rows);
    const float* w = b.floats(weight, {width}, "weight");
    float* to = b.floats(out, {rows, width}, "out");
    compute([&] { at.rms_norm(from, w, eps, rows, width, rounds, to); });
  });
  c.def("rms_norm_backward",
        [](Operators& at, const py::object& dy, const py::object& x, const py::object& weight,
           float eps, const py::object& dx, const py::object& gradient) {
          Borrower b;
          const float* from = b.floats(x, {-1, -1}, "x");
          const int64_t rows = b.shape()[0], width = b.shape()[1];
          expect_rows(rows);
          const float* d = b.floats(dy, {rows, width}, "dy");
          const float* w = b.floats(weight, {width}, "weight");
          float* to = b.floats(dx, {rows, width}, "dx");
          float* dw = b.floats_or_null(gradient, {width}, "the gradient of the weight");
          compute([&] { at.rms_norm_backward(d, from, w, eps, rows, width, to, dw); });
        });
  c.def("rope", [](Operators& at, const py::object& x, int32_t heads, const py::object& positions,
                   const py::object& cos, const py::object& sin) {
    Borrower b;
    float* to = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], width = b.shape()[1];
    expect_rows(rows);
    if (heads < 1 || width % (2 * int64_t{heads}) != 0)
      fail_usage("expected heads of an even size, found {} in {}", heads, width);
    const auto e = static_cast<int32_t>(width / heads);
    const int32_t* at_positions = b.integers(positions, {rows}, "positions");
    const float* c = b.floats(cos, {-1, e / 2}, "cos");
    const int64_t end = b.shape()[0];
    const float* s = b.floats(sin, {end, e / 2}, "sin");
    expect_below(at_positions, rows, end, "positions");
    compute([&] { at.rope(to, rows, heads, e, at_positions, c, s); });
  });
  c.def("gate", [](Operators& at, const py::object& g, const py::object& u,
                   const std::string& curve, const py::object& out) {
    Borrower b;
    const float* gate = b.floats(g, {-1}, "g");
    const int64_t count = b.shape()[0];
    const float* up = b.floats(u, {count}, "u");
    float* to = b.floats(out, {count}, "out");
    const Nonlinearity which = curve_of(curve);
    compute([&] { at.gate(gate, up, count, which, to); });
  });
  c.def("gate_backward",
        [](Operators& at, const py::object& d, const py::object& g, const py::object& u,
           const std::string& curve, const py::object& dg, const py::object& du) {
          Borrower b;
          const float* gate = b.floats(g, {-1}, "g");
          const int64_t count = b.shape()[0];
          const float* up = b.floats(u, {count}, "u");
          const float* gradient = b.floats(d, {count}, "d");
          float *to_gate = b.floats(dg, {count}, "dg"), *to_up = b.floats(du, {count}, "du");
          const Nonlinearity which = curve_of(curve);
          compute([&] { at.gate_backward(gradient, gate, up, count, which, to_gate, to_up); });
        });
}

void bind_attention(py::class_<Operators>& c) {
  c.def("attention", [](Operators& at, const py::object& qkv, const py::dict& given,
                        const py::object& out, const py::object& max, const py::object& sum) {
    Borrower b;
    const AttentionShape shape = attention_of(b, given);
    const float* from = b.floats(qkv, {shape.rows(), shape.qkv_width()}, "qkv");
    float* to = b.floats(out, {shape.rows(), int64_t{shape.heads} * shape.head_dim}, "out");
    float* m = b.floats(max, {shape.rows(), shape.heads}, "max");
    float* l = b.floats(sum, {shape.rows(), shape.heads}, "sum");
    compute([&] { at.attention(from, shape, to, m, l); });
  });
  c.def("paged_attention", [](Operators& at, const py::dict& given) {
    Borrower b;
    const QkvParams rotation = rotation_of(b, at.cache_layout(), given);
    const AttentionParams attention = attention_of(b, given, rotation);
    compute([&] { at.paged_attention(rotation, attention); });
  });
  c.def("attention_backward",
        [](Operators& at, const py::object& d_out, const py::object& qkv, const py::object& out,
           const py::object& max, const py::object& sum, const py::dict& given,
           const py::object& d_qkv, const py::object& q_gradient, const py::object& k_gradient) {
          Borrower b;
          const AttentionShape shape = attention_of(b, given);
          if (shape.score_cap > 0) fail_usage("scores under a cap have no backward");
          const int64_t rows = shape.rows(), width = int64_t{shape.heads} * shape.head_dim;
          const float* from = b.floats(qkv, {rows, shape.qkv_width()}, "qkv");
          const float* d = b.floats(d_out, {rows, width}, "d_out");
          const float* attended = b.floats(out, {rows, width}, "out");
          const float* m = b.floats(max, {rows, shape.heads}, "max");
          const float* l = b.floats(sum, {rows, shape.heads}, "sum");
          float* to = b.floats(d_qkv, {rows, shape.qkv_width()}, "d_qkv");
          float* dq = b.floats_or_null(q_gradient, {shape.head_dim}, "the gradient of q_norm");
          float* dk = b.floats_or_null(k_gradient, {shape.head_dim}, "the gradient of k_norm");
          compute([&] { at.attention_backward(d, from, attended, m, l, shape, to, dq, dk); });
        });
}

void bind_sums(py::class_<Operators>& c) {
  c.def("log_softmax_gather",
        [](Operators& at, const py::object& logits, const py::object& targets,
           const py::object& out, const py::object& max, const py::object& log_sum) {
          Borrower b;
          const float* from = b.floats(logits, {-1, -1}, "logits");
          const int64_t rows = b.shape()[0], vocab = b.shape()[1];
          expect_rows(rows);
          const int32_t* ids = b.integers(targets, {rows}, "targets");
          float* to = b.floats(out, {rows}, "out");
          float *m = b.floats(max, {rows}, "max"), *l = b.floats(log_sum, {rows}, "log_sum");
          expect_below(ids, rows, vocab, "targets");
          compute([&] { at.log_softmax_gather(from, ids, rows, vocab, to, m, l); });
        });
  c.def(
      "log_softmax_gather_backward",
      [](Operators& at, const py::object& logits, const py::object& targets, const py::object& max,
         const py::object& log_sum, const py::object& weights, const py::object& d_logits) {
        Borrower b;
        const float* from = b.floats(logits, {-1, -1}, "logits");
        const int64_t rows = b.shape()[0], vocab = b.shape()[1];
        expect_rows(rows);
        const int32_t* ids = b.integers(targets, {rows}, "targets");
        const float *m = b.floats(max, {rows}, "max"), *l = b.floats(log_sum, {rows}, "log_sum");
        const float* w = b.floats(weights, {rows}, "weights");
        float* to = b.floats(d_logits, {rows, vocab}, "d_logits");
        expect_below(ids, rows, vocab, "targets");
        compute([&] { at.log_softmax_gather_backward(from, ids, m, l, w, rows, vocab, to); });
      });
  c.def("process_logits", [](Operators& at, const py::object& logits, double temperature,
                             int32_t top_k, double top_p, double min_p, const py::object& out) {
    Borrower b;
    const float* from = b.floats(logits, {-1, -1}, "logits");
    const int64_t rows = b.shape()[0], vocab = b.shape()[1];
    expect_rows(rows);
    float* to = b.floats(out, {rows, vocab}, "out");
    const SamplingParams params{
        .temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p};
    compute([&] { at.process_logits(from, rows, vocab, params, to); });
  });
  c.def("route", [](Operators& at, const py::object& logits, int32_t chosen, bool renormalised,
                    const py::object& given, const py::object& ids, const py::object& weights) {
    Borrower b;
    const float* from = b.floats(logits, {-1, -1}, "logits");
    const int64_t rows = b.shape()[0], experts = b.shape()[1];
    expect_rows(rows);
    if (experts > Routing::kMaxExperts || chosen < 1 || chosen > experts ||
        chosen > Routing::kMaxChosen)
      fail_usage("expected 1 to {} of at most {} experts, found {} of {}", Routing::kMaxChosen,
                 Routing::kMaxExperts, chosen, experts);
    const int32_t* known = given.is_none() ? nullptr : b.integers(given, {rows, chosen}, "given");
    auto* to = static_cast<int32_t*>(b.elements(ids, "I32", {rows, chosen}, "ids"));
    float* shares = b.floats(weights, {rows, chosen}, "weights");
    const Routing how{
        .experts = static_cast<int>(experts), .chosen = chosen, .renormalised = renormalised};
    compute([&] { at.route(from, rows, how, known, to, shares); });
  });
  c.def("weighted_sum",
        [](Operators& at, const py::object& y, const py::object& weights, const py::object& out) {
          Borrower b;
          const float* from = b.floats(y, {-1, -1, -1}, "y");
          const int64_t rows = b.shape()[0], chosen = b.shape()[1], width = b.shape()[2];
          expect_rows(rows);
          const float* shares = b.floats(weights, {rows, chosen}, "weights");
          float* to = b.floats(out, {rows, width}, "out");
          compute([&] { at.weighted_sum(from, shares, rows, chosen, width, to); });
        });
  c.def("log_sum_exp",
        [](Operators& at, const py::object& x, const py::object& max, const py::object& log_sum) {
          Borrower b;
          const float* from = b.floats(x, {-1, -1}, "x");
          const int64_t rows = b.shape()[0], width = b.shape()[1];
          expect_rows(rows);
          float *m = b.floats(max, {rows}, "max"), *l = b.floats(log_sum, {rows}, "log_sum");
          compute([&] { at.log_sum_exp(from, rows, width, m, l); });
        });
  c.def("mean", [](Operators& at, const py::object& x, const py::object& out) {
    Borrower b;
    const float* from = b.floats(x, {-1, -1}, "x");
    const int64_t rows = b.shape()[0], width = b.shape()[1];
    expect_rows(rows);
    float* to = b.floats(out, {rows}, "out");
    compute([&] { at.mean(from, rows, width, to); });
  });
}

}  // namespace

void bind_operators(py::module_& m) {
  py::class_<Operators> c(m, "Operators");
  c.def(py::init<const std::string&, const std::string&, int>());
  c.def("packings", &Operators::packings);
  bind_products(c);
  bind_rows(c);
  bind_attention(c);
  bind_sums(c);
  m.def("row_parallel_runs", &orders::row_parallel_runs);
}

}  // namespace invar::python
