// One backward pass, and what the parts of a layer compute theirs with; see backward.cc.
#pragma once

#include "model/backward.h"
#include "model/copy_columns.h"

namespace invar {

// One batch. Letters as in forward_pass.h; d_x is the gradient of x.
class BackwardPass {
 public:
  BackwardPass(Decoder& decoder, const TransposedWeights& transposed,
               const TrainingKernels& kernels, const ParameterLayout& layout, const Batch& batch,
               SequenceStore& kv, BackwardWorkspace& ws, BackwardIo& io);

  void run();

  const DecoderSpec& spec() const { return spec_; }
  const RopeTable& rope(int layer) const { return model_.ropes.of(layer); }
  // Gradient of the module that predicts one token further.
  const MtpGradient& module() const { return *io_.mtp; }
  // The residual stream before a layer, and what the module goes on from.
  const float* layer_input(int layer) const { return io_.tape->input(layer); }
  const float* module_input() const { return io_.tape->module_input(); }
  const TrainingKernels& kernels() const { return kernels_; }
  const Kernels& forward_kernels() const { return model_.kernels; }
  const BackwardWorkspace& workspace() const { return ws_; }
  const StepTables& tables() const { return tables_; }
  int64_t rows() const { return rows_; }
  float* d_hidden() const { return ws_.hidden.data(); }
  static Activation activation(const DeviceArray<bf16_t>& memory, int64_t width) {
    return {memory.data(), DType::bf16, activation_stride(width)};
  }

  // y = x * w, every row and output; rows of y stand side by side unless a stride is named.
  void matmul(const char* name, const Activation& x, const Matrix& w, float* y,
              bool accumulate = false, int64_t y_stride = 0);
  // The same of rows of x.
  Activation round(const float* x, int64_t width, const DeviceArray<bf16_t>& memory,
                   int64_t x_stride = 0);
  // The inputs of a product as the packed side of its weight gradient: all rows, or so many.
  // Nothing where the model's weights are frozen.
  void pack_inputs(const Activation& x, int64_t width, int64_t rows = -1);
  // The gradient of a weight [columns][inputs] from that of its outputs and the packed inputs.
  // Nothing for a frozen one, whose `out` is null.
  void weight_gradient(const char* name, float* out, const Activation& dy, Columns columns,
                       int64_t inputs, int64_t rows = -1);
  // Where an adapter stands beside the product y = x * w of the forward, whose inner size was cut
  // into so many runs: adds what goes back through it to d_x, and has the gradients of its tensors.
  // Rows of d_x stand side by side unless a stride is named.
  void adapter(const Matrix& w, const Activation& x, int split_k, const Activation& dy, float* d_x,
               int64_t d_x_stride = 0);
  bool is_adapted(const Matrix& w) const { return io_.adapter && io_.adapter->beside(w); }
  // Nothing where the layer has no such bias.
  void bias_gradient(TensorRole role, int layer, const Activation& dy, Columns columns);
  // A norm of the residual stream: its weight's role and layer, its weight or null, and, of a
  // LayerNorm, its bias's role.
  struct Norm {
    TensorRole role;
    int layer;
    const float* weight;
    TensorRole bias = TensorRole::final_norm_bias;
  };
  // d = d + the gradient of norm(h), whose output has the gradient in workspace().normed; of
  // rounding alone where there is no weight. d is the gradient of h, or what is named.
  void norm(const Norm& norm, const float* h, float* d = nullptr);
  // The same of a norm that stands elsewhere, of rows of so many elements: from
  // workspace().latent_normed to workspace().latent.
  struct NormSize {
    int64_t width;
    float eps;
  };
  void norm_part(const Norm& norm, const NormSize& size, const float* x);
  // The rounded gradient of the product y of a part that adds y, or norm(y) with a weight.
  Activation added(TensorRole role, int layer, const float* weight, const float* y);
  // d_h = d_h + x
  void add_to_hidden(const DeviceArray<float>& x);
  // +0 everywhere, in rows of so many elements.
  void clear(const DeviceArray<float>& x, int64_t width);
  void copy_columns(RowsOf<float> to, RowsOf<const float> from, int64_t width, int64_t rows) {
    invar::copy_columns(model_.execution, to, from, width, rows);
  }
  // Null where the tensor is frozen, or the model has none.
  float* gradient(TensorRole role, int layer) const;
  float* gradient_at(int64_t offset) const;
  // h = rows of the embedding: adds d_h to its gradient.
  void embed(float* embedding_gradient);
  void clear_hidden();
  // The weight of the loss that balances experts, and the rows of which it counts choices.
  double balance() const { return io_.balance; }
  int64_t balance_rows() const { return io_.balance_rows; }
  // Copies from the device for the host to look at, and the other way round; both wait for it.
  template <typename T>
  std::vector<T> fetched(const T* from, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    model_.device().download(values.data(), from, values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  DeviceArray<T> sent(const std::vector<T>& values) const {
    if (values.empty()) return {};
    DeviceArray<T> array(model_.device(), values.size(), "a backward pass");
    model_.device().upload(array.data(), values.data(), values.size() * sizeof(T));
    return array;
  }
  // One operation on the whole team.
  template <typename Params>
  void run(const char* name, Operation<Params> operation, const Params& params) {
    timed(io_.times, name, [&] { model_.run(operation, params); });
  }

 private:
  void begin_layer(int layer);
  void layer_backward(int layer);
  void mtp_module(const MtpGradient& mtp);
  void output_norm(float* norm_gradient);
  void head(const Activation& d_logits, const Activation& normed, const float* x,
            float* head_gradient, float* norm_gradient, const float* norm_weight);
  // Where the gradients of a norm's own tensors go: null where they are frozen.
  struct NormGradients {
    float* weight;
    float* bias = nullptr;  // of a LayerNorm
  };
  struct NormChain {
    const float *dy, *x, *weight;
    float* dx;
    NormSize size;
  };
  void norm_chain(const NormChain& of, const NormGradients& gradients, bool is_layer_norm = false);
  NormSize stream_size() const { return {spec_.hidden, spec_.norm_eps}; }
  void pack(const Activation& x, int64_t width, int64_t rows);
  void extend_weight(const char* name, float* out, const Activation& dy, Columns columns,
                     int64_t inputs, int64_t rows);
  void adapter_gradients(const AdapterGradients::Product& beside, const Activation& x,
                         const Activation& dy);
  void forward_again(const Batch& batch, int layer, float* before);

  Decoder& model_;
  const DecoderSpec& spec_;
  const TransposedWeights& transposed_;
  const TrainingKernels& kernels_;
  const ParameterLayout& layout_;
  const Batch& batch_;
  SequenceStore& kv_;
  BackwardWorkspace& ws_;
  BackwardIo& io_;
  const int64_t rows_;
  StepTables tables_;
};

}  // namespace invar
