#include "audit_draft_axes.h"

#include <fmt/format.h>

namespace invar::cli {

ReplayOptions random_trees(uint32_t seed) {
  return {.num_speculative_tokens = 1 + static_cast<int32_t>(seed % 5),
          .right = 0.8,
          .branches = 1 + static_cast<int32_t>(seed % 4),
          .seed = seed};
}

Axis draft_trees(bool full, const Schedule& base) {
  Axis axis{.name = "draft trees", .control_differs = true, .expects_drafts = true};
  vary(axis, base, "plain");
  for (uint32_t seed = 1; seed <= (full ? 8u : 2u); ++seed)
    for (const int slots : full ? std::vector<int>{32, 64, 128} : std::vector<int>{32}) {
      Schedule& s = vary(axis, base, fmt::format("trees {}, blocks of {}", seed, slots));
      s.replay = random_trees(seed);
      s.engine.block_size = slots;
    }
  return axis;
}

Axis drafters(bool full, const Schedule& base, const DecoderSpec& spec) {
  Axis axis{.name = "drafters", .control_differs = true, .expects_drafts = true};
  vary(axis, base, "none");
  // As long as they are told, since no draft pays for a model this small.
  const auto draft = [&](std::string config) {
    if (config.find("adaptive") == std::string::npos)
      config.replace(config.rfind('}'), 1, R"(, "adaptive": false})");
    Schedule& s = vary(axis, base, config);
    s.drafts = config;
    s.neighbours = 3;
  };
  draft(R"({"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3})");
  draft(R"({"method": "suffix"})");
  draft(R"({"method": "lookahead"})");
  const std::vector<std::string> lengths =
      full ? std::vector<std::string>{"1", "3", "9"} : std::vector<std::string>{"3"};
  // A drafter of the target's shape, where it is made quickly.
  const bool makes_model = int64_t{spec.layers} * spec.hidden * spec.hidden < (1 << 24);
  const bool has_module = read_model_config(base.model).spec.mtp_layers > 0;
  const bool has_exit = spec.layers > 1 && !has_states(spec);
  int skipped = 1;
  while (skipped < spec.layers - 1 && spec.is_shared(skipped)) ++skipped;
  for (const std::string& k : lengths) {
    const std::string length = R"(, "num_speculative_tokens": )" + k + "}";
    if (makes_model) draft(R"({"method": "draft_model", "model": "dummy:77")" + length);
    if (has_exit) draft(R"({"method": "early_exit")" + length);
    if (has_module) draft(R"({"method": "mtp")" + length);
    if (has_exit && skipped < spec.layers - 1)
      draft(fmt::format(R"({{"method": "swift", "skip_layers": [{}])", skipped) + length);
  }
  if (makes_model) draft(R"({"method": "medusa", "model": "dummy:77"})");
  if (makes_model && spec.layer(0).attention()) {
    for (const char* method : {"eagle", "eagle3"})
      draft(fmt::format(R"({{"method": "{}", "model": "dummy:77"}})", method));
    draft(R"({"method": "eagle3", "model": "dummy:77", "eagle_topk": 3, "eagle_depth": 3, )"
          R"("num_speculative_tokens": 9})");
  }
  if (has_exit)
    draft(
        R"({"method": "early_exit", "exit_layer": 1, "adaptive": true, "speculative_token_tree": )"
        R"("[(0,), (0,0), (0,1), (1,), (1,0), (1,0,0), (2,)]"})");
  const auto replay = [&](std::string label, const ReplayOptions& options) {
    vary(axis, base, std::move(label)).replay = options;
  };
  for (const int nodes : full ? std::vector<int>{1, 4, 17} : std::vector<int>{5}) {
    replay(fmt::format("{} right", nodes), {.num_speculative_tokens = nodes});
    replay(fmt::format("{} wrong", nodes), {.num_speculative_tokens = nodes, .right = 0});
    replay(fmt::format("{}, the last wrong", nodes),
           {.num_speculative_tokens = nodes, .last_is_wrong = true});
    replay(fmt::format("{} levels of 3 at random", nodes),
           {.num_speculative_tokens = nodes, .right = 0.7, .branches = 3});
  }
  return axis;
}

Axis rejection(const Schedule& base) {
  Axis axis{.name = "drafts by rejection",
            .control_differs = true,
            .expects_drafts = true,
            .promises_nothing = true};
  vary(axis, base, "no drafts");
  for (uint32_t seed = 1; seed <= 2; ++seed)
    vary(axis, base, fmt::format("trees {}", seed)).replay = random_trees(seed);
  for (Schedule& s : axis.schedules) s.model.rejection = true;
  return axis;
}

}  // namespace invar::cli
