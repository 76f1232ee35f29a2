// A checkpoint in Python without an engine: the model's specification, its tensors, its rotations.
// invar.models.CausalLM is made of it.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "base/error.h"
#include "engine/model_description.h"
#include "model/families/family_source.h"
#include "model/families/trained_source.h"
#include "model/parts/part.h"
#include "model/rope_table.h"
#include "module.h"
#include "session/open.h"

namespace invar::python {

namespace py = pybind11;

namespace {

class Checkpoint {
 public:
  Checkpoint(const std::string& model, const std::string& load_format)
      : options_{.model = model, .load_format = load_format},
        config_(read_model_config(options_)),
        source_(open_weights(options_, config_)) {
    config_.spec.mtp_layers = 0;
    if (!stores_offsets(spec())) return;
    const TensorSource& stored = source_->as_stored();
    if (stored.has_gguf_names())
      fail_usage(
          "{}: expected a {} model as a directory, found a GGUF file, whose norms stand for "
          "other numbers",
          model, spec().family);
    has_offsets_ = &stored != source_.get();  // random weights are the decoder's own
  }

  const DecoderSpec& spec() const { return config_.spec; }
  // Whether weights of norms are w where the decoder has 1 + w: those that the family stores.
  bool has_offsets() const { return has_offsets_; }
  const TensorSource& source() const { return has_offsets_ ? source_->as_stored() : *source_; }

  // As f32, exactly.
  py::array_t<float> tensor(const std::string& name) const {
    if (!source().has(name)) fail_usage("expected a tensor of the model, found \"{}\"", name);
    const TensorInfo& info = source().info(name);
    py::array_t<float> out(std::vector<py::ssize_t>(info.shape.begin(), info.shape.end()));
    float* to = out.mutable_data();
    const py::gil_scoped_release without;
    source().read(name, 0, info.elements(), DType::f32, to);
    return out;
  }

  // Cosines and sines of a layer, [positions][E / 2] each.
  py::tuple rope(int layer, int positions) const {
    if (layer < 0 || layer >= spec().layers || positions < 1 || positions > (1 << 22))
      fail_usage("expected a layer from 0 to {} and positions, found {} and {}", spec().layers - 1,
                 layer, positions);
    const auto device = make_host_device();
    const LayerSpec parts = spec().layer(layer);
    if (!parts.attention()) fail_usage("expected a layer that attends, found layer {}", layer);
    RopeTable table(*device, parts.attention()->rope, spec().head_dim, positions);
    table.fill(positions, {.device = device.get()});
    const std::vector<py::ssize_t> shape{positions, spec().head_dim / 2};
    return py::make_tuple(py::array_t<float>(shape, table.cos()),
                          py::array_t<float>(shape, table.sin()));
  }

 private:
  ModelOptions options_;
  ModelConfig config_;
  std::unique_ptr<TensorSource> source_;
  bool has_offsets_ = false;
};

// Says where the norms of parts stand: before what they read, behind what they add.
py::dict norms_of(const LayerSpec& layer) {
  const NormPlace attention = layer.attention() ? layer.attention()->norms : NormPlace::none;
  const NormPlace ffn = layer.ffn() ? layer.ffn()->norms : NormPlace::before;
  py::dict norms;
  if (is_before(attention)) norms["attention"] = "input_layernorm";
  if (is_after(attention)) norms["attention_out"] = "post_attention_layernorm";
  if (is_before(ffn))
    norms["ffn"] = is_after(attention) ? "pre_feedforward_layernorm" : "post_attention_layernorm";
  if (is_after(ffn)) norms["ffn_out"] = "post_feedforward_layernorm";
  return norms;
}

py::list layers_of(const DecoderSpec& spec) {
  py::list layers;
  for (const LayerSpec& layer : spec.layer_specs) {
    py::dict one;
    one["window"] = layer.window();
    one["score_scale"] = layer.attention() ? layer.attention()->score_scale : 0;
    one["ffn"] = layer.ffn_width();
    const bool is_silu = !layer.ffn() || layer.ffn()->curve == Nonlinearity::silu;
    one["curve"] = is_silu ? "silu" : "gelu_tanh";
    one["norms"] = norms_of(layer);
    if (layer.experts()) {
      const Routing& how = layer.experts()->routing;
      one["experts"] = how.experts;
      one["chosen"] = how.chosen;
      one["renormalised"] = how.renormalised;
    }
    layers.append(one);
  }
  return layers;
}

// Throws Error where the family has no backward, or stores other tensors than its decoder's.
py::dict spec_of(const Checkpoint& checkpoint) {
  const DecoderSpec& spec = checkpoint.spec();
  try {
    expect_trainable(spec);
  } catch (const Error& error) {
    fail("CausalLM computes no {} model: {}", spec.family, error.what());
  }
  if (stores_otherwise(spec) && !stores_offsets(spec))
    fail("CausalLM computes no {} model: its checkpoints hold other tensors than the decoder's",
         spec.family);
  if (has_states(spec)) fail("CausalLM computes no {} model: its layers have states", spec.family);
  py::dict found;
  found["hidden"] = spec.hidden;
  found["heads"] = spec.heads;
  found["kv_heads"] = spec.kv_heads;
  found["head_dim"] = spec.head_dim;
  found["vocab"] = spec.vocab;
  found["max_positions"] = spec.max_positions;
  found["eps"] = spec.norm_eps;
  found["family"] = spec.family;
  found["qk_norm"] = spec.qk_norm;
  found["joint_qk_norm"] = spec.joint_qk_norm;
  found["norm_offset"] = checkpoint.has_offsets();
  found["embedding_scale"] = spec.embedding_scale;
  found["tied_head"] = spec.tied_head;
  found["o_split_k"] = attention_output_split_k(spec, *spec.layer(0).attention());
  found["layers"] = layers_of(spec);
  return found;
}

}  // namespace

// By the names of SamplingParams.
py::dict sampling_defaults(const std::string& model) {
  const SamplingParams params = open_sampling_defaults({.model = model});
  py::dict named;
  for_each_field<&FieldFacts::of_model>(
      params, [&](const auto& field, const auto& value) { named[field.name] = value; });
  return named;
}

void bind_checkpoint(py::module_& m) {
  m.def("sampling_defaults", sampling_defaults);
  py::class_<Checkpoint>(m, "Checkpoint")
      .def(py::init<const std::string&, const std::string&>())
      .def("spec", spec_of)
      .def("names", [](const Checkpoint& c) { return c.source().names(); })
      .def("tensor", &Checkpoint::tensor)
      .def("rope", &Checkpoint::rope);
}

}  // namespace invar::python
