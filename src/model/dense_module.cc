#include "model/dense_module.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "numerics/math.h"
#include "numerics/orders.h"
#include "weights/hf_directory.h"

namespace invar {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 28;

struct CurveName {
  std::string_view torch, name;
  DenseModule::Curve curve;
};
constexpr std::array kCurves = {
    CurveName{"Identity", "identity", DenseModule::Curve::identity},
    CurveName{"Tanh", "tanh", DenseModule::Curve::tanh},
    CurveName{"Sigmoid", "sigmoid", DenseModule::Curve::sigmoid},
    CurveName{"ReLU", "relu", DenseModule::Curve::relu},
};

float curved(DenseModule::Curve curve, float x) {
  switch (curve) {
    case DenseModule::Curve::tanh:
      return 1.0f - 2.0f / (1.0f + math::exp(x + x));
    case DenseModule::Curve::sigmoid:
      return 1.0f / (1.0f + math::exp(-x));
    case DenseModule::Curve::relu:
      return x > 0 ? x : 0.0f;
    default:
      return x;
  }
}

std::vector<float> read_floats(const TensorSource& tensors, const std::string& name, size_t rank) {
  const TensorInfo& info = tensors.info(name);
  if (info.shape.size() != rank || info.elements() > kMostElements || info.elements() == 0)
    fail("{}: expected {} dimensions of at most {} numbers, found [{}]", tensors.where(name), rank,
         kMostElements, fmt::join(info.shape, ", "));
  std::vector<float> numbers(static_cast<size_t>(info.elements()));
  tensors.read(name, 0, info.elements(), DType::f32, numbers.data());
  if (const int64_t at = first_non_finite(numbers.data(), DType::f32, std::ssize(numbers)); at >= 0)
    fail_non_finite(tensors, name, at);
  return numbers;
}

Digest digest_of(const DenseModule& module) {
  std::vector<float> all = *module.weights;
  all.insert(all.end(), module.bias->begin(), module.bias->end());
  return sha256(std::as_bytes(std::span(all)));
}

// A size in a module's config.json, or -1.
int64_t size_in(const json::Value& config, const char* key) {
  const json::Value* found = config.is_object() ? config.find(key) : nullptr;
  return found ? found->to_integer().value_or(-1) : -1;
}

}  // namespace

std::vector<float> DenseModule::apply(std::span<const float> x) const {
  std::vector<float> y(static_cast<size_t>(outputs));
  for (size_t i = 0; i < y.size(); ++i) {
    const float sum = orders::dot(x.data(), weights->data() + i * x.size(), inputs);
    y[i] = curved(curve, bias->empty() ? sum : sum + (*bias)[i]);
  }
  return y;
}

DenseModule::Curve curve_of(const std::string& name, const std::string& where) {
  const auto at = std::ranges::find(kCurves, name.substr(name.rfind('.') + 1), &CurveName::torch);
  if (at == kCurves.end())
    fail("{}: expected an activation of Identity, Tanh, Sigmoid or ReLU, found {}", where,
         json::quoted(name));
  return at->curve;
}

DenseModule dense_of(const TensorSource& tensors, const std::string& name,
                     DenseModule::Curve curve) {
  const std::string weight = name + ".weight", bias = name + ".bias";
  DenseModule module{.curve = curve, .weights = nullptr, .bias = nullptr};
  module.weights = std::make_shared<std::vector<float>>(read_floats(tensors, weight, 2));
  module.outputs = tensors.info(weight).shape[0];
  module.inputs = tensors.info(weight).shape[1];
  module.bias = std::make_shared<std::vector<float>>(
      tensors.has(bias) ? read_floats(tensors, bias, 1) : std::vector<float>());
  if (!module.bias->empty() && std::ssize(*module.bias) != module.outputs)
    fail("{}: expected {} numbers, found {}", tensors.where(bias), module.outputs,
         module.bias->size());
  module.digest = digest_of(module);
  return module;
}

DenseModule read_dense_module(const std::string& directory) {
  const std::string file = directory + "/config.json";
  const json::Value config = json::parse_file(file, {.max_depth = 8, .max_bytes = 1 << 20});
  const json::Value* activation = config.is_object() ? config.find("activation_function") : nullptr;
  const std::string name = activation && activation->is_string() ? activation->as_string() : "Tanh";
  DenseModule module = dense_of(*open_checkpoint(directory), "linear", curve_of(name, file));
  if (size_in(config, "in_features") != module.inputs ||
      size_in(config, "out_features") != module.outputs)
    fail("{}: expected in_features and out_features of the matrix, {} and {}, found others", file,
         module.inputs, module.outputs);
  return module;
}

json::Value to_json(const DenseModule& module) {
  const auto curve = std::ranges::find(kCurves, module.curve, &CurveName::curve);
  return json::Object{{"inputs", module.inputs},
                      {"outputs", module.outputs},
                      {"activation", curve->name},
                      {"weights", to_hex(module.digest)}};
}

}  // namespace invar
