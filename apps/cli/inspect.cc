// invar inspect: what a model is and what its answers' bits depend on.
#include <fmt/format.h>

#include "base/json.h"
#include "command.h"
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

int run_inspect(const ModelFlags& flags) {
  const auto model = open_with_progress(flags);
  const json::Value report = describe(*model);
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
  command->callback([&action, flags] { action = [flags] { return run_inspect(*flags); }; });
}

}  // namespace invar::cli
