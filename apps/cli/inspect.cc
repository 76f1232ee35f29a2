// invar inspect: what a model is, what its answers' bits depend on, and the memory that it takes.
// No weight is read, but for what --digest and drafts ask.
#include <fmt/format.h>

#include <filesystem>

#include "base/json.h"
#include "command.h"
#include "device/cuda_device.h"
#include "drafters/make_proposer.h"
#include "engine/model_description.h"
#include "engine/model_size.h"
#include "engine/specification.h"
#include "help_format.h"
#include "kv/sequence_store.h"
#include "model/families/presets.h"
#include "session/sampling_defaults.h"

namespace invar::cli {

namespace {

struct InspectFlags {
  ModelFlags model;
  SpeculationFlags drafts;
  bool with_digest = false;
  int context = 0;  // 0: the model's, 8192 at most
  int batch = 1;
};

constexpr int kUsualContext = 8192;
constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

void describe_shape(const DecoderSpec& s, json::Value& v) {
  v.set("family", s.family);
  v.set("hidden", s.hidden);
  v.set("layers", s.layers);
  v.set("heads", s.heads);
  v.set("kv_heads", s.kv_heads);
  v.set("head_dim", s.head_dim);
  const DenseFfnSpec* dense = s.first<DenseFfnSpec>();
  v.set("ffn", dense ? dense->width : 0);
  for (const LayerSpec& layer : s.layer_specs)
    if (layer.experts() && !v.find("experts")) {
      v.set("experts", layer.experts()->routing.experts);
      v.set("experts_per_token", layer.experts()->routing.chosen);
      v.set("expert_ffn", layer.experts()->width);
    }
  v.set("vocab", s.vocab);
  v.set("max_positions", s.max_positions);
  v.set("tied_head", s.tied_head);
}

// The memory of weights as they are stored and of a cache that is full. A step needs more for what
// it computes on its way.
void describe_memory(const ModelDescription& model, const ModelSize& size,
                     const InspectFlags& flags, json::Value& v) {
  const DecoderSpec& s = model.spec();
  const int64_t per_token =
      SequenceStore::block_bytes(states_of(s), 32, model.arithmetic.cache) / 32;
  const int context = flags.context > 0 ? flags.context : std::min(s.max_positions, kUsualContext);
  const int64_t cache = per_token * context * flags.batch;
  const auto free = static_cast<int64_t>(make_host_device()->available_bytes());
  v.set("parameters", size.parameters);
  json::Value stored = json::Object();
  for (const auto& [type, parameters] : size.stored) stored.set(name_of(type), parameters);
  v.set("stored", std::move(stored));
  v.set("weight_bytes", size.bytes);
  v.set("kv_bytes_per_token", per_token);
  v.set("context", context);
  v.set("batch", flags.batch);
  v.set("kv_bytes", cache);
  v.set("memory_bytes", size.bytes + cache);
  v.set("free_memory_bytes", free);
  v.set("fits", size.bytes + cache < free);
}

// The options that run a model fastest on this machine: those of a GPU that this build computes on,
// else those of the host.
std::string fastest_here() {
  for (int i = 0; i < cuda_device_count(); ++i)
    if (cuda_device_is_usable(i)) return "--device cuda --arith hopper";
  return "--device cpu --arith portable";
}

void describe_sampling(const ModelOptions& options, json::Value& v) {
  const SamplingDefaults defaults = find_sampling_defaults(options);
  v.set("sampling", defaults_json(defaults.params));
  v.set("sampling_from", defaults.from);
}

// Rounding on the way to an answer (numerics 0.1); docs/models.md measures what it costs.
std::string rounding(const Arithmetic& arithmetic) {
  if (arithmetic.is_exact) return "none: f32 throughout";
  if (arithmetic.weights == DType::f32) return "q, k, v, p and the cache to bf16";
  std::string inputs = "inputs of products and the cache to bf16";
  if (arithmetic.is_quantised() || arithmetic.multiplies_blocks)
    inputs = "inputs of products to 8 bits or bf16, the cache to bf16";
  return arithmetic.is_rounded ? "matrices of f32 or f16 to bf16, " + inputs : inputs;
}

json::Value describe(const InspectFlags& flags) {
  std::unique_ptr<TensorSource> source;
  const ModelDescription model(resolved(flags.model), source);
  json::Value v;
  v.set("model", model.options.model);
  if (const std::string made = made_weights(model.options); !made.empty()) v.set("weights", made);
  v.set("identity", identity(model.arithmetic, model.spec()));
  v.set("rounding", rounding(model.arithmetic));
  v.set("specification", to_hex(specification_digest(model.config)));
  describe_shape(model.spec(), v);
  describe_memory(model, size_of(*source), flags, v);
  describe_sampling(model.options, v);
  v.set("max_tensor_parallel_size", most_ranks(model.spec()));
  v.set("instruction_set", model.host_kernels.name);
  v.set("fastest_here", fastest_here());
  return v;
}

// The bytes of --kv-cache-memory that the side branches of one sequence's tree may take.
int64_t branch_bytes(const SpeculativeConfig& config, Model& model) {
  const EngineOptions engine;
  const auto proposer =
      make_proposer(config, model, {.max_sequences = 1, .context = model.spec().max_positions});
  if (!proposer || !(proposer->makes_branches() || has_states(model.spec()))) return 0;
  return 2 * proposer->most_nodes() *
         SequenceStore::block_bytes(states_of(model.spec()), engine.block_size,
                                    model.arithmetic().cache);
}

// Adds the facts that need the weights read, or a drafter's.
void describe_loaded(const InspectFlags& flags, json::Value& v) {
  const bool drafts = !flags.drafts.json.empty() || !flags.drafts.method.empty();
  if (!drafts && !flags.with_digest) return;
  const SpeculativeConfig config = config_of(flags.drafts);
  const auto model = open_with_progress({.model = resolved(flags.model), .speculation = config});
  if (drafts) v.set("draft_branch_bytes", branch_bytes(config, *model));
  if (flags.with_digest)
    v.set("weights_digest", to_hex(weights_digest(model->options(), model->pool())));
}

std::string shown(const std::string& key, const json::Value& value) {
  const std::string text = value.is_string() ? value.as_string() : json::dump(value);
  if (!key.ends_with("_bytes")) return text;
  const double bytes = value.as_number();
  return bytes < kGiB ? fmt::format("{} ({:.1f} MiB)", text, bytes / kMiB)
                      : fmt::format("{} ({:.2f} GiB)", text, bytes / kGiB);
}

// A preset has no weights to read: its name alone says all.
void take_preset(ModelOptions& options) {
  std::error_code ignored;
  if (options.load_format == "auto" && is_preset(options.model) &&
      !std::filesystem::exists(options.model, ignored))
    options.load_format = "dummy:1";
}

int run_inspect(InspectFlags flags) {
  take_preset(flags.model.options);
  json::Value report = describe(flags);
  describe_loaded(flags, report);
  if (flags.model.json) {
    fmt::print("{}\n", json::dump(report, 2));
  } else {
    for (const auto& [key, value] : report.as_object())
      fmt::print("{:26} {}\n", key, shown(key, value));
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show a model's shape, its memory, and the identity of its arithmetic; no weight is read");
  auto flags = std::make_shared<InspectFlags>();
  add_model_flags(*command, flags->model);
  add_speculation_flags(*command, flags->drafts);
  command->add_flag("--digest", flags->with_digest,
                    "The SHA-256 of the weights, too, as receipts have it: reads all of them");
  command
      ->add_option("--max-model-len", flags->context,
                   "Tokens of a sequence of which the memory is asked (default: the model's "
                   "positions, 8192 at most)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--max-num-seqs", flags->batch, "Sequences at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  show_first(*command, {{"What is shown",
                         {"--max-model-len", "--max-num-seqs", "--weights", "--kv-cache-dtype",
                          "--load-format", "--digest", "--json"}},
                        {"Machine", {"--device", "--tensor-parallel-size"}}});
  command->callback([&action, flags] { action = [flags] { return run_inspect(*flags); }; });
}

}  // namespace invar::cli
