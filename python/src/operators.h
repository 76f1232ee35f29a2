// The engine's and the trainer's operations on tensors of somebody else: what PyTorch's operators
// are made of (python/invar/torch). All tensors are f32, row-major; what enters a matrix product is
// rounded to bf16 on the way in (numerics 0.1), weights and biases too. Backward functions add to
// the gradients of weights, whose chains go on from what stands there.
//
// Letters as in kernels/inference.h: T rows, K inner size, N outputs, F width, H and G heads, E.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/training.h"
#include "numerics/routing.h"
#include "packed_weights.h"
#include "sampling/params.h"

namespace invar::python {

// One weight of a product of several, [n][K], with its bias, [n] or null; and their gradients, or
// null where they are not wanted.
struct Weight {
  const float* w = nullptr;
  const float* bias = nullptr;
  int64_t n = 0;
  float* gradient = nullptr;
  float* bias_gradient = nullptr;
};

// The shape of attention: sequences that stand one after the other, and how queries and keys are
// changed.
struct AttentionShape {
  std::vector<int32_t> lengths;  // of the sequences; their sum is T
  int32_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  const float* q_norm = nullptr;  // [E] or null
  const float* k_norm = nullptr;
  float eps = 0;
  const float* cos = nullptr;  // [positions][E/2], as many as the longest sequence has
  const float* sin = nullptr;
  double score_scale = 0;  // 0: 1 / sqrt(E)
  float score_cap = 0;     // 0: none

  int64_t rows() const;
  int32_t longest() const;
  int64_t qkv_width() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
};

class Operators {
 public:
  Operators(const std::string& order, const std::string& instruction_set, int threads);

  // out[t] = rows of the table [V][D]; and g[token] += dx[t].
  void embedding(const int32_t* tokens, int64_t rows, const float* table, int64_t width,
                 float* out);
  void embedding_backward(const int32_t* tokens, int64_t rows, const float* dx, int64_t width,
                          float* gradient);
  // out = act(rmsnorm(x)); without `rounds` in f32. dx is written.
  void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                bool rounds, float* out);
  void rms_norm_backward(const float* dy, const float* x, const float* weight, float eps,
                         int64_t rows, int64_t width, float* dx, float* gradient);
  // y = (residual +) x w^T + bias, in `split_k` parts; the outputs of the weights one after the
  // other.
  void linear(const float* x, int64_t rows, int64_t k, const std::vector<Weight>& weights,
              int split_k, const float* residual, float* y);
  void linear_backward(const float* dy, const float* x, int64_t rows, int64_t k,
                       const std::vector<Weight>& weights, float* dx);
  // y = x w^T + bias in f32 throughout, the weight mode f32: x [T][K], w [N][K].
  void matmul_f32(const float* x, const float* w, const float* bias, int64_t rows, int64_t k,
                  int64_t n, float* y);
  // out = act(curve(x gate^T) * (x up^T)); dots [T][2 * round_up(F, 16)] is for the backward.
  void gated(const float* x, int64_t rows, int64_t k, const Weight& gate, const Weight& up,
             Nonlinearity curve, float* out, float* dots);
  void gated_backward(const float* d_gated, const float* x, const float* dots, int64_t rows,
                      int64_t k, const Weight& gate, const Weight& up, Nonlinearity curve,
                      float* dx);
  // Queries and keys are normalised, where there are norms, and rotated; then attention. out [T][H
  // * E]; max and sum [T][H] are for the backward, which adds to the norms' gradients, or null.
  void attention(const float* qkv, const AttentionShape& shape, float* out, float* max, float* sum);
  void attention_backward(const float* d_out, const float* qkv, const float* out, const float* max,
                          const float* sum, const AttentionShape& shape, float* d_qkv,
                          float* q_gradient, float* k_gradient);
  // The same over a cache of the caller's, which has the rows' keys and values afterwards.
  void paged_attention(const QkvParams& rotation, const AttentionParams& attention);
  CacheLayout cache_layout() const { return kernels_.cache; }
  // Rotates heads where they lie; with -sin that is its backward.
  void rope(float* x, int64_t rows, int32_t heads, int32_t head_dim, const int32_t* positions,
            const float* cos, const float* sin);
  // out[t] = log p(target[t]); max and log_sum [T] are for the backward: d = -g * (wanted - p),
  // rounded, for `weights` [T] = -g.
  void log_softmax_gather(const float* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                          float* out, float* max, float* log_sum);
  void log_softmax_gather_backward(const float* logits, const int32_t* targets, const float* max,
                                   const float* log_sum, const float* weights, int64_t rows,
                                   int64_t vocab, float* d_logits);
  // The rows that a sampler with these parameters samples from (numerics 6), of tokens of a prompt:
  // -inf where excluded. A row with a NaN, and one of which nothing is left, becomes NaN.
  void process_logits(const float* logits, int64_t rows, int64_t vocab, SamplingParams params,
                      float* out);
  // Which experts rows go through, `ids` [T][k] ascending, and with which weights (numerics 7); a
  // row of `given` [T][k] whose first is not negative says its own. Throws UsageError for others.
  void route(const float* logits, int64_t rows, const Routing& how, const int32_t* given,
             int32_t* ids, float* weights);
  // out[t] = the sum over i of weights[t][i] * act(y[t][i]), a chain of fma from +0.
  void weighted_sum(const float* y, const float* weights, int64_t rows, int64_t chosen,
                    int64_t width, float* out);
  // The largest of each row and the log of the sum of exp(x - max): numerics 3.
  void log_sum_exp(const float* x, int64_t rows, int64_t width, float* max, float* log_sum);
  // out[t] = sum64(x[t]) / width.
  void mean(const float* x, int64_t rows, int64_t width, float* out);
  // out = curve(g) * u, rounded; and its backward (numerics 9).
  void gate(const float* g, const float* u, int64_t count, Nonlinearity curve, float* out);
  void gate_backward(const float* d, const float* g, const float* u, int64_t count,
                     Nonlinearity curve, float* dg, float* du);
  // How often weights were packed into panels.
  int64_t packings() {
    const std::lock_guard lock(mutex_);
    return packed_.made();
  }

 private:
  template <typename T>
  DeviceArray<T> array(int64_t count) {
    return {*host_, static_cast<size_t>(count), "an operator"};
  }
  template <typename Params>
  void run(Operation<Params> operation, const Params& params) {
    execution_.run(operation, params);
  }
  // Calls work(begin, end) for pieces of [0, count).
  void for_pieces(int64_t count, FunctionRef<void(int64_t, int64_t)> work);
  // Rows of bf16 with zeros behind them up to `padded` rows.
  Activation rounded(const float* x, int64_t rows, int64_t width, int64_t padded,
                     DeviceArray<bf16_t>& memory);
  void widen(const Activation& x, int64_t rows, int64_t width, float* out);
  std::vector<bf16_t> bf16_rows(const float* w, int64_t count);
  // Biases and norms' weights as the forward sees them; empty for null.
  std::vector<float> rounded_vector(const float* x, int64_t count);
  // The weights of one product as panels; those of a pair take turns. Kept for the next call.
  const Matrix& packed(const std::vector<Weight>& weights, int64_t k, bool is_pair);
  Matrix pack(const std::vector<Weight>& weights, int64_t k, bool is_pair,
              DeviceArray<bf16_t>& memory);
  // The same the other way round: their outputs as inner elements.
  Matrix transposed(const std::vector<Weight>& weights, int64_t k, bool is_pair,
                    DeviceArray<bf16_t>& memory);
  void product(const Activation& x, const Matrix& w, int64_t rows, float* y);
  void weight_gradients(const Activation& dy, const float* x, int64_t rows, int64_t k,
                        const std::vector<Weight>& weights, bool is_pair);
  struct Cache;
  void fill_cache(Cache& cache, const float* qkv, const AttentionShape& shape);

  std::mutex mutex_;
  std::unique_ptr<Device> host_;
  ThreadPool pool_;
  PackedWeights packed_;
  Kernels kernels_;
  TrainingKernels training_;
  Execution execution_;
};

}  // namespace invar::python
