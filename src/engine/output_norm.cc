#include "engine/output_norm.h"

#include "base/thread_pool.h"
#include "kernels/layout.h"

namespace invar {

int64_t norm_output(Model& model, OutputNorm norm, std::span<const float> hidden,
                    std::vector<float>& out) {
  const ScopedFlushToZero flush;
  const DecoderSpec& spec = model.spec();
  const DecoderWeights& weights = model.workers().home().weights();
  const auto on_host = [&](const float* from) {
    std::vector<float> to(from ? static_cast<size_t>(spec.hidden) : 0);
    if (from) model.device().download(to.data(), from, to.size() * sizeof(float));
    return to;
  };
  const bool is_model = norm == OutputNorm::model;
  const std::vector<float> weight =
      on_host(is_model ? weights.final_norm() : weights.module_norm());
  const std::vector<float> bias = on_host(is_model ? weights.final_norm_bias() : nullptr);
  const int64_t rows = std::ssize(hidden) / spec.hidden;
  const int64_t stride = round_up(spec.hidden, kLeafPad);
  out.resize(static_cast<size_t>(rows * stride));
  const Activation to{out.data(), DType::f32, stride};
  if (bias.empty())
    model.host_kernels().rms_norm({.x = hidden.data(),
                                   .x_stride = spec.hidden,
                                   .rows_of = nullptr,
                                   .weight = weight.data(),
                                   .eps = spec.norm_eps,
                                   .rows = rows,
                                   .width = spec.hidden,
                                   .out = to},
                                  Execution{});
  else
    model.host_kernels().layer_norm({.x = hidden.data(),
                                     .x_stride = spec.hidden,
                                     .rows_of = nullptr,
                                     .weight = weight.data(),
                                     .bias = bias.data(),
                                     .eps = spec.norm_eps,
                                     .rows = rows,
                                     .width = spec.hidden,
                                     .out = to},
                                    Execution{});
  return stride;
}

}  // namespace invar
