// A checkpoint in Python without an engine: what the model is, its tensors, its rotations. What
// invar.models.CausalLM is made of.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "base/error.h"
#include "engine/model_description.h"
#include "model/parts/part.h"
#include "model/rope_table.h"
#include "module.h"

namespace invar::python {

namespace py = pybind11;

namespace {

class Checkpoint {
 public:
  Checkpoint(const std::string& model, const std::string& load_format)
      : options_{.model = model, .load_format = load_format},
        config_(read_model_config(options_)),
        source_(open_weights(options_, config_)) {}

  const DecoderSpec& spec() const { return config_.spec; }
  const TensorSource& source() const { return *source_; }

  // As f32, exactly.
  py::array_t<float> tensor(const std::string& name) const {
    if (!source_->has(name)) fail_usage("expected a tensor of the model, found \"{}\"", name);
    const TensorInfo& info = source_->info(name);
    py::array_t<float> out(std::vector<py::ssize_t>(info.shape.begin(), info.shape.end()));
    float* to = out.mutable_data();
    const py::gil_scoped_release without;
    source_->read(name, 0, info.elements(), DType::f32, to);
    return out;
  }

  // Cosines and sines of a layer, [positions][E / 2] each.
  py::tuple rope(int layer, int positions) const {
    if (layer < 0 || layer >= spec().layers || positions < 1 || positions > (1 << 22))
      fail_usage("expected a layer from 0 to {} and positions, found {} and {}", spec().layers - 1,
                 layer, positions);
    const auto device = make_host_device();
    RopeTable table(*device, spec().layer(layer).attention.rope, spec().head_dim, positions);
    table.fill(positions, {.device = device.get()});
    const std::vector<py::ssize_t> shape{positions, spec().head_dim / 2};
    return py::make_tuple(py::array_t<float>(shape, table.cos()),
                          py::array_t<float>(shape, table.sin()));
  }

 private:
  ModelOptions options_;
  ModelConfig config_;
  std::unique_ptr<TensorSource> source_;
};

py::list layers_of(const DecoderSpec& spec) {
  py::list layers;
  for (const LayerSpec& layer : spec.layer_specs) {
    py::dict one;
    one["window"] = layer.attention.window;
    one["score_scale"] = layer.attention.score_scale;
    one["ffn"] = layer.ffn.width;
    one["curve"] = layer.ffn.curve == Nonlinearity::silu ? "silu" : "gelu_tanh";
    layers.append(one);
  }
  return layers;
}

// Throws Error where the family has no backward.
py::dict spec_of(const Checkpoint& checkpoint) {
  const DecoderSpec& spec = checkpoint.spec();
  expect_backward(spec);
  py::dict found;
  found["hidden"] = spec.hidden;
  found["heads"] = spec.heads;
  found["kv_heads"] = spec.kv_heads;
  found["head_dim"] = spec.head_dim;
  found["vocab"] = spec.vocab;
  found["max_positions"] = spec.max_positions;
  found["eps"] = spec.norm_eps;
  found["qk_norm"] = spec.qk_norm;
  found["tied_head"] = spec.tied_head;
  found["o_split_k"] = attention_output_split_k(spec);
  found["layers"] = layers_of(spec);
  return found;
}

}  // namespace

void bind_checkpoint(py::module_& m) {
  py::class_<Checkpoint>(m, "Checkpoint")
      .def(py::init<const std::string&, const std::string&>())
      .def("spec", spec_of)
      .def("names", [](const Checkpoint& c) { return c.source().names(); })
      .def("tensor", &Checkpoint::tensor)
      .def("rope", &Checkpoint::rope);
}

}  // namespace invar::python
