// invar inspect: what a model is and what its answers' bits depend on.
#include <fmt/format.h>

#include "base/json.h"
#include "command.h"
#include "drafters/make_proposer.h"
#include "engine/specification.h"
#include "kv/sequence_store.h"

namespace invar::cli {

namespace {

json::Value describe(Model& model) {
  const DecoderSpec& s = model.spec();
  json::Value v;
  v.set("model", model.options().model);
  if (const std::string made = made_weights(model.options()); !made.empty()) v.set("weights", made);
  v.set("identity", model.identity());
  v.set("specification", to_hex(specification_digest(model.config())));
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
  v.set("weight_bytes", model.weight_bytes());
  v.set("kv_bytes_per_token",
        SequenceStore::block_bytes(states_of(s), 32, model.arithmetic().cache) / 32);
  v.set("max_tensor_parallel_size", most_ranks(s));
  v.set("instruction_set", model.instruction_set());
  return v;
}

// What the side branches of one sequence's tree may take of --kv-cache-memory.
int64_t branch_bytes(const SpeculativeConfig& config, Model& model) {
  const EngineOptions engine;
  const auto proposer =
      make_proposer(config, model, {.max_sequences = 1, .context = model.spec().max_positions});
  if (!proposer || !(proposer->makes_branches() || has_states(model.spec()))) return 0;
  return 2 * proposer->most_nodes() *
         SequenceStore::block_bytes(states_of(model.spec()), engine.block_size,
                                    model.arithmetic().cache);
}

int run_inspect(const ModelFlags& flags, const SpeculationFlags& drafts, bool with_digest) {
  const SpeculativeConfig config = config_of(drafts);
  const auto model = open_with_progress({.model = resolved(flags), .speculation = config});
  json::Value report = describe(*model);
  if (!drafts.json.empty() || !drafts.method.empty())
    report.set("draft_branch_bytes", branch_bytes(config, *model));
  if (with_digest)
    report.set("weights_digest", to_hex(weights_digest(model->options(), model->pool())));
  if (flags.json) {
    fmt::print("{}\n", json::dump(report, 2));
  } else {
    for (const auto& [key, value] : report.as_object())
      fmt::print("{:26} {}\n", key, value.is_string() ? value.as_string() : json::dump(value));
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a model's shape, its memory, and the identity of its arithmetic");
  auto flags = std::make_shared<ModelFlags>();
  add_model_flags(*command, *flags);
  auto drafts = std::make_shared<SpeculationFlags>();
  add_speculation_flags(*command, *drafts);
  auto with_digest = std::make_shared<bool>(false);
  command->add_flag("--digest", *with_digest,
                    "The SHA-256 of the weights, too, as receipts have it: reads all of them");
  command->callback([&action, flags, drafts, with_digest] {
    action = [=] { return run_inspect(*flags, *drafts, *with_digest); };
  });
}

}  // namespace invar::cli
