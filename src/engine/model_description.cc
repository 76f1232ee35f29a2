#include "engine/model_description.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/number_of.h"
#include "engine/devices.h"
#include "engine/layer_cuts.h"
#include "kernels/select.h"
#include "model/decoder_weights.h"
#include "model/families/family_source.h"
#include "model/families/fp8_rows_source.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/tensors.h"
#include "weights/bare_source.h"
#include "weights/gguf.h"
#include "weights/hf_directory.h"
#include "weights/mxfp4_source.h"
#include "weights/packed_formats.h"
#include "weights/weights_digest.h"

namespace invar {

namespace {

constexpr std::string_view kArithmetics[] = {"portable", "hopper",        "pair",
                                             "control",  "control-batch", "control-batch-hopper"};

// "control", or "control:RUNS" with RUNS of 1, 2, 4 or 8: of an audit, whose foils differ in that.
Arithmetic parse_baseline(const std::string& name) {
  for (const int runs : {0, 1, 2, 4, 8})
    if (name == (runs > 0 ? fmt::format("control:{}", runs) : "control"))
      return {.is_baseline = true, .baseline_split_k = runs};
  fail_usage("expected an arithmetic of {}, found \"{}\"", fmt::join(kArithmetics, ", "), name);
}

Arithmetic parse_arithmetic(const ModelOptions& options) {
  Arithmetic arithmetic;
  if (options.arithmetic == "portable") return arithmetic;
  if (options.arithmetic == "pair") {
    arithmetic.order = Order::pair;
    if (options.device != "cpu")
      fail_usage("the arithmetic pair is computed on CPUs, and the device is {}", options.device);
    return arithmetic;
  }
  if (options.arithmetic == "hopper" || options.arithmetic == "control-batch-hopper")
    arithmetic.order = Order::hopper;
  else if (!options.arithmetic.starts_with("control-batch"))
    return parse_baseline(options.arithmetic);
  if (options.arithmetic.starts_with("control-batch")) arithmetic.chain = options.ranks;
  if (std::ranges::find(kArithmetics, options.arithmetic) == std::end(kArithmetics))
    fail_usage("expected an arithmetic of {}, found \"{}\"", fmt::join(kArithmetics, ", "),
               options.arithmetic);
  return arithmetic;
}

CacheType parse_cache_type(const std::string& name) {
  if (name == "auto" || name == "bf16" || name == "bfloat16") return CacheType::bf16;
  if (name == "int8") return CacheType::int8;
  if (name == "fp8_e4m3" || name == "fp8") return CacheType::fp8_e4m3;
  fail_usage("expected a kv-cache-dtype of auto, bf16, int8 or fp8_e4m3, found {}",
             json::quoted(name));
}

// The seed of "dummy:SEED", or nothing for "auto".
std::optional<uint64_t> dummy_seed(const std::string& load_format) {
  if (load_format == "auto") return std::nullopt;
  if (load_format.starts_with("dummy:"))
    if (const auto seed = number_of<uint64_t>(load_format.substr(6))) return seed;
  fail_usage("expected a load format of auto or dummy:SEED, found \"{}\"", load_format);
}

// The function behind a cross-encoder's score: config.json's, else the logistic function.
DenseModule::Curve score_curve(const json::Value& config, const std::string& where) {
  const json::Value* of_library = config.find("sentence_transformers");
  const json::Value* name =
      of_library && of_library->is_object() ? of_library->find("activation_fn") : nullptr;
  return name && name->is_string() ? curve_of(name->as_string(), where + "/config.json")
                                   : DenseModule::Curve::sigmoid;
}

// Reads what a directory has beside and behind the layers.
void read_heads(const ModelOptions& options, ModelConfig& config) {
  if (config.head == Head::classes) {
    const json::Value whole = open_hf_directory(options.model).config;
    config.pooling = {.kind = Pooling::Kind::last, .final_norm = true};
    config.pooling.dense = {
        dense_of(*open_checkpoint(options.model), "score", score_curve(whole, options.model))};
    const DenseModule& score = config.pooling.dense[0];
    if (score.outputs != 1 || score.inputs != config.spec.hidden)
      fail("{}: expected score.weight of 1 row of {} numbers, found [{}, {}]", options.model,
           config.spec.hidden, score.outputs, score.inputs);
    return;
  }
  config.pooling = read_pooling(options.model, config.spec.hidden);
  // An embedding model may leave its head out.
  if (config.pooling == Pooling() || config.spec.tied_head || is_gguf(options.model)) return;
  if (open_checkpoint(options.model)->has("lm_head.weight")) return;
  config.head = Head::none;
  config.spec.tied_head = true;
}

}  // namespace

ModelConfig read_model_config(const ModelOptions& options) {
  if (dummy_seed(options.load_format)) {
    if (is_preset(options.model)) return {.spec = preset_spec(options.model)};
    std::error_code ignored;
    if (!std::filesystem::exists(options.model, ignored))
      fail_usage("expected a model directory or a preset of invar make-model, found nothing at {}",
                 json::quoted(options.model));
  }
  const HfDirectory directory = open_hf_directory(options.model);
  ModelConfig config = parse_model_config(directory.config, directory.generation_config,
                                          options.model, options.ignored_config_keys);
  if (options.load_format == "auto") read_heads(options, config);
  if (options.context > 0) set_context(config.spec, options.context);
  return config;
}

namespace {

// Tensors of bf16 as the numbers that are asked for, which a quantised checkpoint has itself.
std::unique_ptr<TensorSource> made_numbers(const ModelOptions& options, const ModelConfig& config,
                                           std::unique_ptr<TensorSource> tensors) {
  if (options.weights != "fp8-row" || !config.quantization.is_null()) return tensors;
  return fp8_rows(config.spec, std::move(tensors));
}

}  // namespace

std::unique_ptr<TensorSource> open_weights(const ModelOptions& options, const ModelConfig& config) {
  if (const auto seed = dummy_seed(options.load_format)) {
    if (!config.quantization.is_null())
      fail_usage("random weights are bf16, and {} has a quantization_config", options.model);
    return made_numbers(options, config, dummy_weights(config.spec, *seed));
  }
  auto stored = open_checkpoint(options.model);
  if (is_mxfp4(config.quantization, options.model))
    stored = mxfp4_tensors(std::move(stored));
  else if (!config.quantization.is_null())
    stored = quantised_tensors(std::move(stored), config.quantization,
                               options.weights == "twin"      ? Quantised::as_twin
                               : options.weights == "fp8"     ? Quantised::as_fp8
                               : options.weights == "fp8-row" ? Quantised::as_fp8_row
                                                              : Quantised::as_stored);
  stored =
      bare_tensors(std::move(stored), config.head == Head::tokens, config.head == Head::classes);
  return made_numbers(options, config, decoder_tensors(config.spec, std::move(stored)));
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
  constexpr std::array kWeights = {"auto", "rounded", "exact", "twin", "fp8", "fp8-row", "blocks"};
  if (std::ranges::find(kWeights, options.weights) == kWeights.end())
    fail_usage("expected weights {}, found \"{}\"", fmt::join(kWeights, ", "), options.weights);
  if (options.threads < 0 || options.threads > 1024)
    fail_usage("expected 0 to 1024 threads, found {}", options.threads);
  if (peer_options(options.exchange).way != PeerOptions::Way::automatic &&
      (options.device == "cpu" || options.ranks == 1))
    fail_usage("an exchange of {} is for ranks on GPUs, and there are {} on the device {}",
               options.exchange, options.ranks, options.device);
  if (options.ranks < 1 || options.ranks > 64 || (options.ranks & (options.ranks - 1)) != 0)
    fail_usage("expected a tensor-parallel size of 1, 2, 4, ... 64, found {}", options.ranks);
}

void check_cuts(const std::vector<int>& cuts, const DecoderSpec& spec) {
  for (const int cut : cuts)
    if (cut <= 0 || cut >= spec.layers)
      fail_usage("expected layer cuts between 1 and {}, found {}", spec.layers - 1, cut);
  if (std::ranges::adjacent_find(cuts, std::greater_equal()) != cuts.end())
    fail_usage("expected ascending layer cuts, found {}", fmt::join(cuts, ","));
}

// Refuses caches that cannot be used with these options.
void check_cache(const Arithmetic& arithmetic, const ModelOptions& options) {
  if (arithmetic.cache == CacheType::bf16) return;
  if (arithmetic.is_baseline)
    fail_usage("the arithmetic control has keys and values of bf16, and {} was asked for",
               options.kv_cache_dtype);
  if (options.weights == "exact")
    fail_usage("--weights exact has keys and values of f32, and {} was asked for",
               options.kv_cache_dtype);
}

// Refuses arithmetics and options that a model of these layers cannot be computed with.
void check_layers(const DecoderSpec& spec, const Arithmetic& arithmetic,
                  const ModelOptions& options) {
  const AttentionSpec* attention = spec.first<AttentionSpec>();
  const bool is_latent = attention && attention->latent;
  if (is_latent && options.device != "cpu" && spec.head_dim % 8 != 0)
    fail_usage(
        "the {} model has latent attention, which a GPU computes of a latent and turning elements "
        "whose number 8 divides: found {}",
        spec.family, spec.head_dim);
  if (is_latent && options.device != "cpu" && arithmetic.is_baseline)
    fail_usage(
        "the {} model has latent attention, which the arithmetic control computes on the CPU: "
        "expected the device cpu, found {}",
        spec.family, options.device);
  if (is_latent && (options.weights == "exact" || arithmetic.cache != CacheType::bf16))
    fail_usage(
        "the {} model has latent attention, whose keys and values are bf16: expected neither "
        "--weights exact nor a --kv-cache-dtype of 8 bits",
        spec.family);
  if (most_stages(spec) == 1 && spec.layers > 1 &&
      (options.stages > 1 || !options.layer_cuts.empty()))
    fail_usage(
        "the {} model has layers that read what is of other layers, which are one pipeline stage: "
        "expected 1, found {}",
        spec.family, std::max<size_t>(options.stages, options.layer_cuts.size() + 1));
  if (arithmetic.chain > 0 && spec.first<ExpertsSpec>())
    fail_usage("the arithmetic {} is for dense models, and this one has experts",
               options.arithmetic);
}

// Where experts cannot lie.
void check_placement(const DecoderSpec& spec, const Arithmetic& arithmetic,
                     const ModelOptions& options) {
  const ExpertPlacement placement =
      parse_expert_placement(options.expert_placement, options.redundant_experts);
  if (!placement.is_linear() && arithmetic.is_baseline && options.device != "cpu")
    fail_usage(
        "the arithmetic control adds experts in the order in which they lie on the CPU only, and "
        "the device is {}",
        options.device);
  if (!spec.first<ExpertsSpec>() && !placement.is_linear())
    fail_usage(
        "expected a model with experts for a placement or copies of them, found {} without experts",
        spec.family);
  for (const LayerSpec& layer : spec.layer_specs)
    if (layer.experts() && placement.copies > layer.experts()->routing.experts)
      fail_usage("expected at most {} redundant experts, a second copy of each, found {}",
                 layer.experts()->routing.experts, placement.copies);
}

void check_quantised(const Arithmetic& arithmetic, const ModelOptions& options) {
  if (options.weights == "fp8" && arithmetic.quantised != DType::e4m3)
    fail_usage(
        "--weights fp8 is for checkpoints whose matrices are f8_e4m3 with 128 k columns, and this "
        "model has none");
  if (options.weights == "fp8-row" && arithmetic.quantised != DType::e4m3_row)
    fail_usage(
        "--weights fp8-row is for matrices with 128 k columns that are bf16, or f8_e4m3 with "
        "scales of rows or of whole tensors, and this model has none");
  if (!arithmetic.is_quantised()) return;
  const char* products = arithmetic.quantised == DType::i8 ? "integers" : "e4m3 numbers";
  if (arithmetic.weights == DType::f32)
    fail_usage(
        "products of {} are defined beside bf16 weights and this model's others are f32 or f16; "
        "use --weights twin",
        products);
  if (arithmetic.is_baseline)
    fail_usage("the arithmetic control has no products of {}; use --weights twin", products);
}

// Products of blocks as integers (numerics 2.3) are asked for.
void check_blocks(const Arithmetic& arithmetic, const ModelConfig& config,
                  const ModelOptions& options, const TensorSource& source) {
  const bool is_packed =
      !config.quantization.is_null() && !is_mxfp4(config.quantization, options.model);
  if (is_packed || !has_blocks(config.spec, source))
    fail_usage(
        "--weights blocks is for models whose matrices are stored in blocks (GGUF, MXFP4), and {} "
        "has none",
        options.model);
  if (arithmetic.order != Order::portable || arithmetic.is_baseline || arithmetic.chain > 0)
    fail_usage(
        "products of blocks (--weights blocks) are defined beside the arithmetic portable, and {} "
        "was asked for",
        options.arithmetic);
  if (options.device != "cpu")
    fail_usage("products of blocks (--weights blocks) are computed on CPUs, and the device is {}",
               options.device);
}

// The weight mode (numerics 0.1): from how the matrices are stored, and from what is asked for.
void set_weights(Arithmetic& arithmetic, const ModelOptions& options, const ModelConfig& config,
                 const TensorSource& source) {
  const DecoderSpec& spec = config.spec;
  arithmetic.weights = product_type(spec, source);
  if (options.weights == "exact") {
    arithmetic.weights = DType::f32;
    arithmetic.is_exact = true;
    arithmetic.cache = CacheType::f32;
  } else {
    arithmetic.quantised = quantised_type(spec, source);
    check_quantised(arithmetic, options);
    arithmetic.multiplies_blocks = options.weights == "blocks";
    if (arithmetic.multiplies_blocks) check_blocks(arithmetic, config, options, source);
    const bool rounds = options.weights == "rounded" || has_blocks(spec, source);
    if (rounds && arithmetic.weights == DType::f32) {
      arithmetic.weights = DType::bf16;  // else there is nothing to round
      arithmetic.is_rounded = true;
    }
  }
  if (arithmetic.order == Order::portable || arithmetic.weights != DType::f32) return;
  if (arithmetic.is_exact)
    fail_usage("the arithmetic {} is defined for bf16 weights, and --weights exact asks for f32",
               name_of(arithmetic.order));
  fail_usage(
      "the arithmetic {} is defined for bf16 weights and this model's are f32 or f16; use "
      "--weights rounded",
      name_of(arithmetic.order));
}

}  // namespace

ModelDescription::ModelDescription(const ModelOptions& asked, std::unique_ptr<TensorSource>& source)
    : options(asked) {
  check_options(options);
  arithmetic = parse_arithmetic(options);
  arithmetic.cache = parse_cache_type(options.kv_cache_dtype);
  check_cache(arithmetic, options);
  config = read_model_config(options);
  check_layers(spec(), arithmetic, options);
  check_placement(spec(), arithmetic, options);
  source = open_weights(options, config);
  if (const int announced = std::exchange(config.spec, spec_of_stored(spec(), *source)).mtp_layers;
      announced > spec().mtp_layers)
    fmt::print(stderr,
               "invar: {}: config.json announces a module of multi-token prediction "
               "(num_nextn_predict_layers, mtp_num_hidden_layers), and the weights have none: the "
               "model is "
               "opened without\n",
               options.model);
  check_tensors(spec(), *source);
  // A module that predicts further stands in the checkpoint, unused unless it drafts.
  if (options.mtp_module)
    check_module(spec(), *source);
  else
    config.spec.mtp_layers = 0;
  set_weights(arithmetic, options, config, *source);
  if (options.layer_cuts.empty())
    options.layer_cuts = balanced_cuts(spec(), options.stages);
  else if (std::cmp_not_equal(options.stages, stages()) && options.stages != 1)
    fail_usage("expected layer cuts for {} pipeline stages, found {} for {}", options.stages,
               fmt::join(options.layer_cuts, ","), stages());
  check_cuts(options.layer_cuts, spec());
  make_shard(spec(), 0, options.ranks);  // throws before workers are started
  options.executor = options.ranks * stages() == 1 ? "threads" : options.settled_executor();
  host_kernels = arithmetic.multiplies_blocks
                     ? select_block_kernels(options.instruction_set)
                     : select_kernels(arithmetic.order, options.instruction_set);
}

void ModelDescription::expect_same_model(const ModelConfig& other,
                                         const TensorSource& tensors) const {
  const DecoderSpec stored = spec_of_stored(other.spec, tensors);
  DecoderSpec found = stored;
  found.mtp_layers = spec().mtp_layers;
  if (found != spec())
    fail(
        "expected a checkpoint of the model that is served, found another shape in its "
        "config.json");
  if (other.pooling != config.pooling)
    fail("expected a checkpoint with the modules behind the pooling that are served, found others");
  check_tensors(stored, tensors);
  if (options.mtp_module) check_module(stored, tensors);
  const DType served = arithmetic.is_rounded ? DType::f32 : arithmetic.weights;
  if (!arithmetic.is_exact && (product_type(spec(), tensors) != served ||
                               quantised_type(spec(), tensors) != arithmetic.quantised))
    fail("expected matrices of the type that is served ({}), found another",
         arithmetic.is_quantised() ? name_of(arithmetic.quantised)
         : served == DType::f32    ? "f32 or f16"
                                   : name_of(served));
}

}  // namespace invar
