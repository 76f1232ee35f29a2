#include "engine/model_description.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "kernels/select.h"
#include "model/decoder_weights.h"
#include "model/families/family_source.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/tensors.h"
#include "weights/hf_directory.h"
#include "weights/weights_digest.h"

namespace invar {

namespace {

Arithmetic parse_arithmetic(const ModelOptions& options) {
  Arithmetic arithmetic;
  if (options.arithmetic == "portable") return arithmetic;
  if (options.arithmetic == "hopper")
    arithmetic.order = Order::hopper;
  else if (options.arithmetic == "control")
    arithmetic.is_baseline = true;
  else
    fail_usage("expected an arithmetic of portable, hopper or control, found \"{}\"",
               options.arithmetic);
  return arithmetic;
}

// The seed of "dummy:SEED", or nothing for "auto".
std::optional<uint64_t> dummy_seed(const std::string& load_format) {
  if (load_format == "auto") return std::nullopt;
  uint64_t seed = 0;
  const char *begin = load_format.data() + 6, *end = load_format.data() + load_format.size();
  if (load_format.starts_with("dummy:")) {
    const auto parsed = std::from_chars(begin, end, seed);
    if (parsed.ec == std::errc() && parsed.ptr == end) return seed;
  }
  fail_usage("expected a load format of auto or dummy:SEED, found \"{}\"", load_format);
}

}  // namespace

ModelConfig read_model_config(const ModelOptions& options) {
  if (dummy_seed(options.load_format)) {
    if (is_preset(options.model)) return {.spec = preset_spec(options.model)};
    std::error_code ignored;
    if (!std::filesystem::exists(options.model, ignored))
      fail_usage("expected a model directory or a preset of {}, found nothing at {}",
                 fmt::join(preset_names(), ", "), json::quoted(options.model));
  }
  const HfDirectory directory = open_hf_directory(options.model);
  ModelConfig config =
      parse_model_config(directory.config, directory.generation_config, options.model);
  if (options.context > 0) set_context(config.spec, options.context);
  return config;
}

std::unique_ptr<TensorSource> open_weights(const ModelOptions& options, const ModelConfig& config) {
  if (const auto seed = dummy_seed(options.load_format)) return dummy_weights(config.spec, *seed);
  return decoder_tensors(config.spec, open_checkpoint(options.model));
}

std::unique_ptr<TensorSource> open_weights(const ModelOptions& options) {
  return open_weights(options, read_model_config(options));
}

Digest weights_digest(const ModelOptions& options, ThreadPool& pool) {
  const auto source = open_weights(options);
  const TensorSource& stored = source->as_stored();
  return weights_digest(stored, stored.names(), pool);
}

namespace {

void check_options(const ModelOptions& options) {
  if (options.weights != "auto" && options.weights != "rounded")
    fail_usage("expected weights auto or rounded, found \"{}\"", options.weights);
  if (options.threads < 0 || options.threads > 1024)
    fail_usage("expected 0 to 1024 threads, found {}", options.threads);
  if (options.ranks < 1 || options.ranks > 64 || (options.ranks & (options.ranks - 1)) != 0)
    fail_usage("expected a tensor-parallel size of 1, 2, 4, ... 64, found {}", options.ranks);
}

// The first layers of all stages but the first, where stages have about as many layers each.
std::vector<int> even_cuts(int stages, int layers) {
  if (stages < 1 || stages > layers)
    fail_usage("expected a pipeline-parallel size of 1 to {}, a stage for each layer, found {}",
               layers, stages);
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage) cuts.push_back(stage * layers / stages);
  return cuts;
}

void check_cuts(const std::vector<int>& cuts, const DecoderSpec& spec) {
  for (const int cut : cuts)
    if (cut <= 0 || cut >= spec.layers)
      fail_usage("expected layer cuts between 1 and {}, found {}", spec.layers - 1, cut);
  if (std::ranges::adjacent_find(cuts, std::greater_equal()) != cuts.end())
    fail_usage("expected ascending layer cuts, found {}", fmt::join(cuts, ","));
}

}  // namespace

ModelDescription::ModelDescription(const ModelOptions& asked, std::unique_ptr<TensorSource>& source)
    : options(asked) {
  check_options(options);
  arithmetic = parse_arithmetic(options);
  config = read_model_config(options);
  source = open_weights(options, config);
  check_tensors(spec(), *source);
  // What predicts further stands in the checkpoint, unused unless it drafts.
  if (options.mtp_module)
    check_module(spec(), *source);
  else
    config.spec.mtp_layers = 0;
  arithmetic.weights = product_type(spec(), *source);
  if (options.weights == "rounded" && arithmetic.weights == DType::f32) {
    arithmetic.weights = DType::bf16;  // else there is nothing to round
    arithmetic.is_rounded = true;
  }
  if (arithmetic.order == Order::hopper && arithmetic.weights == DType::f32)
    fail_usage(
        "the arithmetic hopper is defined for bf16 weights and this model's are f32 or f16; use "
        "--weights rounded");
  if (options.layer_cuts.empty())
    options.layer_cuts = even_cuts(options.stages, spec().layers);
  else if (std::cmp_not_equal(options.stages, stages()) && options.stages != 1)
    fail_usage("expected layer cuts for {} pipeline stages, found {} for {}", options.stages,
               fmt::join(options.layer_cuts, ","), stages());
  check_cuts(options.layer_cuts, spec());
  make_shard(spec(), 0, options.ranks);  // throws before workers are started
  if (options.ranks * stages() == 1) options.executor = "threads";
  host_kernels = select_kernels(arithmetic.order, options.instruction_set);
}

void ModelDescription::expect_same_model(const ModelConfig& other,
                                         const TensorSource& tensors) const {
  DecoderSpec found = other.spec;
  found.mtp_layers = spec().mtp_layers;
  if (found != spec())
    fail(
        "expected a checkpoint of the model that is served, found another shape in its "
        "config.json");
  check_tensors(other.spec, tensors);
  if (options.mtp_module) check_module(other.spec, tensors);
  const DType served = arithmetic.is_rounded ? DType::f32 : arithmetic.weights;
  if (product_type(spec(), tensors) != served)
    fail("expected matrices of the type that is served ({}), found another",
         served == DType::f32 ? "f32 or f16" : name_of(served));
}

}  // namespace invar
