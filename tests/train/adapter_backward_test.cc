// The backward of a product with an adapter, beside what numerics 9 says of it, written out one
// number at a time: every bit.
#include <gtest/gtest.h>

#include <cmath>

#include "model/backward_pass.h"
#include "training_case.h"
#include "weights/peft_adapter.h"

namespace invar {
namespace {

constexpr int kRows = 64, kRank = 5;
constexpr double kAlpha = 3;

// Rows of numbers.
template <typename T>
struct Table {
  Table(int64_t rows, int64_t stride)
      : stride(stride), values(static_cast<size_t>(rows * stride)) {}
  T& at(int64_t row, int64_t column) { return values[static_cast<size_t>(row * stride + column)]; }
  int64_t stride;
  std::vector<T> values;
};
using Rounded = Table<bf16_t>;

float f32(bf16_t x) {
  return bf16_to_f32(x);
}

// A chain over leaves of 32 that begins at `acc`: numerics 1, without its last + 0.
template <typename X, typename W>
float chain(float acc, int64_t count, X x, W w) {
  for (int64_t leaf = 0; leaf < count; leaf += 32) {
    float even = 0, odd = 0;
    for (int64_t i = leaf; i < leaf + 32; i += 2) {
      if (i < count) even = std::fma(x(i), w(i), even);
      if (i + 1 < count) odd = std::fma(x(i + 1), w(i + 1), odd);
    }
    acc = acc + (even + odd);
  }
  return acc + 0.0F;
}

class AdapterBackward : public testing::TestWithParam<TinyModel> {
 protected:
  explicit AdapterBackward(const char* set = "auto")
      : spec_(GetParam().spec),
        weights_(random_weights(ParameterLayout(spec_), 1)),
        kernels_(select_training_kernels(Order::portable, set)),
        decoder_weights_(spec_, {}, make_shard(spec_, 0, 1),
                         ParameterSource(ParameterLayout(spec_), weights_.data()), *device_, pool_),
        decoder_(spec_, {}, select_kernels(Order::portable, set), decoder_weights_, *device_,
                 &pool_),
        modules_(made_modules(spec_)),
        layout_(spec_, tensors()),
        numbers_(random_weights(layout_, 2)),
        adapter_("a test", modules_, std::make_unique<ParameterSource>(layout_, numbers_.data())),
        adapter_weights_(decoder_, adapter_),
        gradients_of_(decoder_, adapter_weights_, layout_, kRows) {
    gradients_of_.update(numbers_.data(), kernels_, decoder_.execution);
  }

  static std::vector<AdapterModule> made_modules(const DecoderSpec& spec) {
    std::vector<AdapterModule> modules = adaptable_modules(spec, AdapterUser::trainer);
    for (AdapterModule& module : modules) {
      module.rank = kRank;
      module.scale = kAlpha / kRank;
      module.a = peft_name(module.name, 'A');
      module.b = peft_name(module.name, 'B');
    }
    return modules;
  }
  std::vector<TensorSpec> tensors() const {
    std::vector<TensorSpec> all;
    for (const AdapterModule& module : modules_) {
      all.push_back({TensorRole::q, 0, module.a, {kRank, module.inputs}});
      all.push_back({TensorRole::q, 0, module.b, {module.outputs, kRank}});
    }
    return all;
  }

  void expect_as_the_page(const AdapterGradients::Product& product, std::mt19937& random);

  const DecoderSpec spec_;
  std::unique_ptr<Device> device_ = make_host_device();
  ThreadPool pool_{2};
  std::vector<bf16_t> weights_;
  TrainingKernels kernels_;
  DecoderWeights decoder_weights_;
  Decoder decoder_;
  std::vector<AdapterModule> modules_;
  ParameterLayout layout_;
  std::vector<bf16_t> numbers_;
  LoraAdapter adapter_;
  AdapterWeights adapter_weights_;
  AdapterGradients gradients_of_;
};

// u, v and what comes of them, by the numbers of numerics 9.
void AdapterBackward::expect_as_the_page(const AdapterGradients::Product& product,
                                         std::mt19937& random) {
  std::normal_distribution<float> normal;
  const int64_t inputs = product.forward->w.k, outputs = product.b.k;
  Rounded x(kRows, activation_stride(inputs)), dy(kRows, activation_stride(outputs));
  Table<float> dx(kRows, inputs);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t k = 0; k < inputs; ++k) x.at(t, k) = f32_to_bf16(normal(random));
    for (int64_t k = 0; k < inputs; ++k) dx.at(t, k) = normal(random);
    for (int64_t n = 0; n < outputs; ++n) dy.at(t, n) = f32_to_bf16(normal(random));
  }
  std::vector<float> gradients(static_cast<size_t>(layout_.size() + gradients_of_.later_size()));
  for (float& g : gradients) g = normal(random);

  // Found
  Table<float> found_dx = dx;
  std::vector<float> found = gradients;
  Batch batch;
  batch.rows.resize(kRows);
  SequenceStore kv(*device_, states_of(spec_), {.blocks = 1, .block_size = 32});
  BackwardWorkspace workspace(decoder_, kernels_, kRows, kRows, kRank);
  const TransposedWeights transposed(spec_, *device_);
  BackwardIo io{.gradients = found.data(), .adapter = &gradients_of_};
  {
    const ScopedFlushToZero flush;
    BackwardPass pass(decoder_, transposed, kernels_, layout_, batch, kv, workspace, io);
    pass.adapter(product.forward->w, {x.values.data(), DType::bf16, x.stride}, 1,
                 {dy.values.data(), DType::bf16, dy.stride}, found_dx.values.data());
  }

  // The page
  const float s = static_cast<float>(kAlpha / kRank);
  const int64_t ranks = product.forward->a.n;
  Rounded u(kRows, ranks), v(kRows, ranks), a(ranks, inputs), b(ranks, outputs);
  for (const AdapterGradients::Tensor& tensor : product.tensors)
    for (int64_t r = 0; r < kRank; ++r) {
      for (int64_t k = 0; k < inputs; ++k)
        a.at(tensor.inner.first + r, k) = numbers_[tensor.a + r * inputs + k];
      for (const auto& [first, outputs] : tensor.rows)
        for (int64_t n = 0; n < outputs.count; ++n)
          b.at(tensor.inner.first + r, outputs.at(n)) = numbers_[tensor.b + first + n * kRank + r];
    }
  for (int64_t t = 0; t < kRows; ++t)
    for (int64_t r = 0; r < ranks; ++r) {
      const auto along = [&](Rounded& values, Rounded& matrix, int64_t count) {
        return chain(
            0, count, [&](int64_t i) { return f32(values.at(t, i)); },
            [&](int64_t i) { return f32(matrix.at(r, i)); });
      };
      u.at(t, r) = f32_to_bf16(along(x, a, inputs) * s);
      v.at(t, r) = f32_to_bf16(along(dy, b, outputs) * s);
    }
  int different = 0;
  for (int64_t t = 0; t < kRows; ++t)
    for (int64_t k = 0; k < inputs; ++k) {
      const float back = chain(
          0, ranks, [&](int64_t r) { return f32(v.at(t, r)); },
          [&](int64_t r) { return f32(a.at(r, k)); });
      different += found_dx.at(t, k) != dx.at(t, k) + back;
    }
  const auto sum_over_rows = [&](int64_t at, Rounded& left, int64_t row, Rounded& right,
                                 int64_t column) {
    const float wanted = chain(
        gradients[at], kRows, [&](int64_t t) { return f32(left.at(t, row)); },
        [&](int64_t t) { return f32(right.at(t, column)); });
    different += found[at] != wanted;
    gradients[at] = wanted;
  };
  for (const AdapterGradients::Tensor& tensor : product.tensors)
    for (int64_t r = 0; r < kRank; ++r) {
      for (int64_t k = 0; k < inputs; ++k)
        sum_over_rows(tensor.chain + r * inputs + k, v, tensor.inner.first + r, x, k);
      for (const auto& [first, outputs] : tensor.rows)
        for (int64_t n = 0; n < outputs.count; ++n)
          sum_over_rows(tensor.b + first + n * kRank + r, dy, outputs.at(n), u,
                        tensor.inner.first + r);
    }
  EXPECT_EQ(different, 0) << product.forward->modules[0];
  EXPECT_EQ(found, gradients) << "numbers of other tensors";
}

TEST_P(AdapterBackward, HasTheBitsOfThePage) {
  std::mt19937 random(5);
  ASSERT_FALSE(adapter_weights_.products().empty());
  for (const auto& [data, product] : adapter_weights_.products())
    expect_as_the_page(*gradients_of_.beside(product.w), random);
}

INSTANTIATE_TEST_SUITE_P(Models, AdapterBackward,
                         testing::Values(tiny_models()[0], tiny_models()[3],
                                         tiny_models_of_other_norms()[1],
                                         tiny_models_of_other_norms()[2],
                                         tiny_models_with_states()[1], tiny_models_with_states()[3],
                                         tiny_models_with_states()[4]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace invar
