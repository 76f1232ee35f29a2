#include "train/drafter/drafter_math.h"

#include <algorithm>

#include "kernels/pack.h"
#include "kernels/select.h"

namespace invar {

namespace {

constexpr const char* kWhat = "a drafter's training";

// Room for so many elements.
void grow(DeviceArray<bf16_t>& memory, Device& device, int64_t count) {
  if (std::ssize(memory) < count) memory = {device, static_cast<size_t>(count), kWhat};
}

}  // namespace

DrafterMath::DrafterMath(Device& device, ThreadPool& pool, const std::string& instruction_set,
                         int max_rows)
    : device_(device),
      stream_(device.make_stream()),
      on_{.device = &device, .stream = stream_.get(), .pool = &pool},
      kernels_(select_kernels(Order::portable, instruction_set)),
      training_(select_training_kernels(Order::portable, instruction_set)),
      max_rows_(max_rows),
      rs_(device, static_cast<size_t>(max_rows), kWhat) {}

FloatRows DrafterMath::floats(int64_t width) const {
  return {{device_, static_cast<size_t>(max_rows_ * width), kWhat}, width};
}

RoundedRows DrafterMath::rounded(int64_t width) const {
  return {{device_, static_cast<size_t>(max_rows_ * activation_stride(width)), kWhat}, width};
}

Matrix DrafterMath::allocate(int64_t n, int64_t k, int matrices) const {
  Matrix w{.n = n, .k = k, .count = matrices};
  weights_.emplace_back(device_, static_cast<size_t>(w.elements()), kWhat);
  w.data = weights_.back().data();
  return w;
}

TrainedMatrix DrafterMath::matrix(int first, int64_t outputs, int64_t inputs, int runs) const {
  TrainedMatrix m{.first = first, .outputs = outputs, .inputs = inputs};
  m.forward = allocate(outputs, inputs);
  for (int i = 0; i < runs; ++i) m.backward.push_back(allocate(inputs / runs, outputs));
  return m;
}

TrainedMatrix DrafterMath::gated_pair(int first, int64_t outputs, int64_t inputs) const {
  TrainedMatrix m{.first = first, .outputs = outputs, .inputs = inputs, .is_pair = true};
  m.forward = allocate(outputs, inputs, 2);
  m.backward.push_back(allocate(inputs, 2 * round_up(outputs, kPanelWidth)));
  return m;
}

// Tensors that stand together are the rows of one matrix; those of a pair take turns by panels.
void DrafterMath::pack(const DrafterParameters& parameters, const TrainedMatrix& m) const {
  for (int part = 0; part < (m.is_pair ? 2 : 1); ++part) {
    const bf16_t* rows = parameters.weights(m.first + part);
    const PackPlace place = m.is_pair ? PackPlace{part * kPanelWidth, 2} : PackPlace{};
    on_.pool->run([&](Part share) {
      const auto [begin, end] = share.of(m.outputs, kPanelWidth);
      pack_rows(m.forward, rows + begin * m.inputs, m.inputs, begin, end - begin, place,
                const_cast<void*>(m.forward.data));
    });
    const Columns inner{0, m.outputs, m.is_pair ? part : -1};
    for (size_t i = 0; i < m.backward.size(); ++i) {
      const Matrix& to = m.backward[i];
      run(training_.pack_columns,
          PackColumnsParams{.x = rows + static_cast<int64_t>(i) * to.n,
                            .x_stride = m.inputs,
                            .rows = m.outputs,
                            .width = to.n,
                            .inner = inner,
                            .inner_size = to.k,
                            .out = static_cast<bf16_t*>(const_cast<void*>(to.data))});
    }
  }
}

std::vector<float> DrafterMath::vector_of(const DrafterParameters& parameters, int index) const {
  std::vector<float> values(static_cast<size_t>(parameters.count(index)));
  convert_elements(parameters.weights(index), DType::bf16, std::ssize(values), DType::f32,
                   values.data());
  return values;
}

void DrafterMath::product(const Activation& x, const Matrix& w, float* y, bool adds) const {
  run(kernels_.matmul, MatmulParams{.x = x,
                                    .w = w,
                                    .rows = rows_,
                                    .split_k = 1,
                                    .bias = nullptr,
                                    .accumulate = adds,
                                    .y = y,
                                    .y_stride = w.n});
}

void DrafterMath::gated_product(const Activation& x, const Matrix& w, const Activation& out,
                                float* dots) const {
  run(training_.gated_matmul, KeptGatedMatmulParams{.product = {.x = x,
                                                                .gate_up = w,
                                                                .rows = rows_,
                                                                .gate_bias = nullptr,
                                                                .up_bias = nullptr,
                                                                .out = out},
                                                    .dots = dots});
}

void DrafterMath::round(const float* x, const RoundedRows& out) const {
  run(training_.round, RoundParams{.x = x,
                                   .x_stride = out.width,
                                   .rows = rows_,
                                   .width = out.width,
                                   .out = out.activation()});
}

void DrafterMath::norm(const float* x, const float* weight, float eps, int64_t width,
                       const Activation& out) const {
  run(kernels_.rms_norm, RmsNormParams{.x = x,
                                       .x_stride = width,
                                       .rows_of = nullptr,
                                       .weight = weight,
                                       .eps = eps,
                                       .rows = rows_,
                                       .width = width,
                                       .out = out});
}

void DrafterMath::norm_backward(const float* dy, const float* x, const float* weight, float eps,
                                int64_t width, float* dx, float* gradient) {
  run(training_.norm_backward, NormBackwardParams{.dy = dy,
                                                  .x = x,
                                                  .weight = weight,
                                                  .eps = eps,
                                                  .rows = rows_,
                                                  .width = width,
                                                  .dx = dx,
                                                  .rs = rs_.data()});
  run(training_.norm_gradient, NormGradientParams{.dy = dy,
                                                  .dy_stride = width,
                                                  .x = x,
                                                  .x_stride = width,
                                                  .rs = rs_.data(),
                                                  .rs_stride = 1,
                                                  .rows = rows_,
                                                  .heads = 1,
                                                  .width = width,
                                                  .gradient = gradient});
}

void DrafterMath::weight_gradient(DrafterParameters& parameters, const TrainedMatrix& m,
                                  const Activation& dy, const Activation& x, bool begins) {
  const Matrix packed{.n = m.inputs, .k = rows_};
  grow(packed_, device_, packed.elements());
  grow(transposed_, device_, m.outputs * activation_stride(rows_));
  run(training_.pack_columns, PackColumnsParams{.x = static_cast<const bf16_t*>(x.data),
                                                .x_stride = x.stride,
                                                .rows = rows_,
                                                .width = m.inputs,
                                                .inner = {0, rows_},
                                                .inner_size = rows_,
                                                .out = packed_.data()});
  Matrix inputs = packed;
  inputs.data = packed_.data();
  for (int part = 0; part < (m.is_pair ? 2 : 1); ++part) {
    const Activation columns{transposed_.data(), DType::bf16, activation_stride(rows_)};
    run(training_.transpose, TransposeParams{.x = dy,
                                             .rows = rows_,
                                             .columns = {0, m.outputs, m.is_pair ? part : -1},
                                             .out = columns});
    run(begins ? kernels_.matmul : training_.extend_matmul,
        MatmulParams{.x = columns,
                     .w = inputs,
                     .rows = m.outputs,
                     .split_k = 1,
                     .bias = nullptr,
                     .accumulate = false,
                     .y = parameters.gradient(m.first + part),
                     .y_stride = m.inputs});
  }
}

Scores DrafterMath::scores_of(const float* logits, int64_t vocab) const {
  Scores scores(static_cast<int>(rows_));
  scores.logits = logits;
  scores.rows = rows_;
  scores.vocab = vocab;
  run(kernels_.log_sum_exp, LogitsParams{.logits = logits,
                                         .rows = rows_,
                                         .stride = vocab,
                                         .vocab = vocab,
                                         .argmax = scores.argmax.data(),
                                         .max = scores.max.data(),
                                         .log_sum = scores.log_sum.data(),
                                         .has_nan = scores.has_nan.get()});
  return scores;
}

void DrafterMath::loss_gradient(const Scores& own, const Scores& teacher, int64_t shift,
                                std::span<const float> weights, const RoundedRows& out) const {
  const int64_t rows = rows_ - shift;
  const std::vector<int32_t> no_targets(static_cast<size_t>(rows_));
  run(training_.loss, LossParams{.logits = own.logits,
                                 .rows = rows,
                                 .stride = own.vocab,
                                 .vocab = own.vocab,
                                 .max = own.max.data(),
                                 .log_sum = own.log_sum.data(),
                                 .targets = no_targets.data(),
                                 .weights = weights.data(),
                                 .teacher = teacher.logits + shift * teacher.vocab,
                                 .teacher_max = teacher.max.data() + shift,
                                 .teacher_log_sum = teacher.log_sum.data() + shift,
                                 .teacher_share = 1.0f,
                                 .out = out.activation()});
  const int64_t stride = activation_stride(out.width);
  std::fill_n(out.memory.data() + rows * stride, shift * stride, bf16_t{});
}

}  // namespace invar
