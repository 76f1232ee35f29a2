#include "heads_f64.h"

#include <algorithm>
#include <cmath>

namespace invar {

namespace {

void normalise(RowsF64& x, int64_t size, double scale) {
  for (std::vector<double>& row : x)
    for (size_t first = 0; first < row.size(); first += static_cast<size_t>(size)) {
      double sum = 0;
      for (int64_t d = 0; d < size; ++d) sum += row[first + d] * row[first + d];
      for (int64_t d = 0; d < size; ++d) row[first + d] *= scale / std::sqrt(sum + 1e-6);
    }
}

double step_of(const HeadsF64& of, const RowsOfHeads& rows, size_t t, int64_t place) {
  return std::log1p(std::exp(rows.decays[t][place] + of.bias[place]));
}

void recur(const HeadsF64& of, int64_t head, const RowsOfHeads& rows, RowsF64& out) {
  const int64_t key = head / (of.heads / of.key_heads) * of.key_size, value = head * of.value_size;
  RowsF64 state(static_cast<size_t>(of.key_size),
                std::vector<double>(static_cast<size_t>(of.value_size)));
  for (size_t t = 0; t < out.size(); ++t) {
    const double *q = &rows.queries[t][key], *k = &rows.keys[t][key], *v = &rows.values[t][value];
    double step = 0, factor = 0;
    std::vector<double> decay(static_cast<size_t>(of.key_size));
    for (int64_t d = 0; d < of.key_size; ++d) {
      step = step_of(of, rows, t, of.has_channels ? head * of.key_size + d : head);
      if (!of.is_delta) factor = step = std::min(std::max(step, of.least), of.most);
      decay[d] = std::exp(-step * std::exp(of.rate[head]));
    }
    if (of.is_delta) factor = (of.doubles ? 2 : 1) / (1 + std::exp(-rows.factors[t][head]));
    for (int64_t e = 0; e < of.value_size; ++e) {
      double u = v[e], y = 0;
      for (int64_t d = 0; d < of.key_size; ++d) state[d][e] *= decay[d];
      for (int64_t d = 0; d < of.key_size && of.is_delta; ++d) u -= state[d][e] * k[d];
      for (int64_t d = 0; d < of.key_size; ++d) {
        state[d][e] += k[d] * factor * u;
        y += state[d][e] * q[d];
      }
      out[t][value + e] = of.is_delta ? y : y + of.skip[head] * v[e];
    }
  }
}

double gate_of(const HeadsF64& of, double z) {
  return (of.has_channels ? 1 : z) / (1 + std::exp(-z));
}

// The norm of groups: of the delta rule before the gates, else behind them.
void gate(const HeadsF64& of, const RowsF64& z, RowsF64& x) {
  const size_t width = x[0].size() / static_cast<size_t>(of.norm_groups);
  for (size_t t = 0; t < x.size(); ++t)
    for (size_t first = 0; first < x[t].size(); first += width) {
      double sum = 0;
      for (size_t i = first; i < first + width; ++i) {
        if (!of.is_delta) x[t][i] *= gate_of(of, z[t][i]);
        sum += x[t][i] * x[t][i];
      }
      const double rs = 1 / std::sqrt(sum / static_cast<double>(width) + of.norm_eps);
      for (size_t i = first; i < first + width; ++i)
        x[t][i] *= of.is_delta ? rs * of.norm[i - first] * gate_of(of, z[t][i]) : rs * of.norm[i];
    }
}

}  // namespace

RowsF64 run_heads_f64(const HeadsF64& of, RowsOfHeads rows) {
  if (of.is_delta) {
    normalise(rows.queries, of.key_size, 1 / std::sqrt(static_cast<double>(of.key_size)));
    normalise(rows.keys, of.key_size, 1);
  }
  RowsF64 out(rows.values.size(), std::vector<double>(rows.values[0].size()));
  for (int64_t head = 0; head < of.heads; ++head) recur(of, head, rows, out);
  gate(of, rows.gates, out);
  return out;
}

}  // namespace invar
