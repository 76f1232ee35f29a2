#include "weights/gguf_rope.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "numerics/math.h"

namespace invar {

namespace {

// llama3's scaling stands in files as what it divides each frequency by, without its parameters.
// They are those of all published models but for the factor, which is the largest of these.
json::Value llama3_scaling(const GgufKeys& in, double theta, int64_t head_dim) {
  constexpr double kLow = 1, kHigh = 4, kPositions = 8192;
  const auto source = open_gguf_tensors(std::make_shared<GgufFile>(in.file().path()));
  const int64_t count = source->info("rope_freqs.weight").elements();
  if (count != head_dim / 2)
    fail("{}: expected {} frequencies, found {}", source->where("rope_freqs.weight"), head_dim / 2,
         count);
  std::vector<float> divisors(static_cast<size_t>(count));
  source->read("rope_freqs.weight", 0, count, DType::f32, divisors.data());
  const double factor = *std::ranges::max_element(divisors);
  for (int64_t i = 0; i < count; ++i) {
    const double frequency =
        math::pow(theta, -static_cast<double>(2 * i) / static_cast<double>(head_dim));
    const double w = 0x1.921fb54442d18p+2 / frequency;
    const double smooth = (kPositions / w - kLow) / (kHigh - kLow);
    double expected = 1 / ((1 - smooth) / factor + smooth);
    if (w < kPositions / kHigh) expected = 1;
    if (w > kPositions / kLow) expected = factor;
    if (!(std::fabs(divisors[static_cast<size_t>(i)] / expected - 1) < 1e-4))
      fail("{}: expected the frequencies of llama3's scaling by {}, found {} at {}",
           source->where("rope_freqs.weight"), factor, divisors[static_cast<size_t>(i)], i);
  }
  return json::Object{{"rope_type", "llama3"},
                      {"factor", factor},
                      {"low_freq_factor", kLow},
                      {"high_freq_factor", kHigh},
                      {"original_max_position_embeddings", static_cast<int64_t>(kPositions)}};
}

// A factor without a type is that of linear scaling, as for llama.cpp.
std::string scaling_type(const GgufKeys& in) {
  const json::Value* type = in.find("rope.scaling.type");
  if (!type) return in.find_number("rope.scaling.factor").value_or(0) != 0 ? "linear" : "none";
  if (!type->is_string())
    fail("{}: {}: expected a text, found {}", in.file().path(), in.key("rope.scaling.type"),
         json::excerpt(*type));
  return type->as_string();
}

}  // namespace

json::Value gguf_rope_scaling(const GgufKeys& in, double theta, int64_t head_dim) {
  const std::string name = scaling_type(in);
  if (in.tensor("rope_freqs.weight")) {
    if (name == "none") return llama3_scaling(in, theta, head_dim);
    fail("{}: expected no other scaling beside the tensor \"rope_freqs.weight\", found {}",
         in.file().path(), json::quoted(name));
  }
  for (const char* other : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (in.tensor(other))
      fail("{}: tensor {}: factors of long texts are not supported in GGUF files", in.file().path(),
           json::quoted(other));
  if (name == "none") {
    in.ignore("rope.scaling.factor");
    in.ignore("rope.scaling.original_context_length");
    return {};
  }
  json::Value scaling =
      json::Object{{"rope_type", name}, {"factor", in.number("rope.scaling.factor")}};
  if (name == "linear") return scaling;
  if (name != "yarn")
    fail("{}: {}: expected none, linear or yarn, found {}", in.file().path(),
         in.key("rope.scaling.type"), json::quoted(name));
  scaling.set("original_max_position_embeddings",
              in.integer("rope.scaling.original_context_length"));
  for (const auto& [from, to] : {std::pair("rope.scaling.yarn_beta_fast", "beta_fast"),
                                 {"rope.scaling.yarn_beta_slow", "beta_slow"}})
    if (const auto value = in.find_number(from)) scaling.set(to, *value);
  return scaling;
}

}  // namespace invar
