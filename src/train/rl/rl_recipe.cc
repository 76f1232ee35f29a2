#include "train/rl/rl_recipe.h"

#include "base/error.h"
#include "train/rl/rounding.h"

namespace invar::rl {

namespace {

const std::vector<std::string> kMethods = {"reinforce", "grpo"};
const std::vector<std::string> kCorrections = {"none", "truncated", "clipped"};

// An enumeration by the place of its name.
template <typename Enum>
bool get_named(TomlSection& section, const char* key, const std::vector<std::string>& names,
               Enum& value) {
  std::string name;
  section.get(key, name, names);
  if (!section.has(key)) return false;
  value = static_cast<Enum>(std::find(names.begin(), names.end(), name) - names.begin());
  return true;
}

void read_tasks(TomlSection section, RlRecipe& recipe) {
  Tasks& tasks = recipe.tasks;
  OwnTasks& own = recipe.own;
  section.get("file", own.file);
  section.get("reward", own.reward, {"exact", "last_line", "contains"});
  own.command = section.strings("command");
  if (section.has("reward") && section.has("command"))
    fail_usage("{}: expected a reward by name or the command of a program, found both",
               section.file());
  if (section.has("command") && own.command.empty())
    fail_usage("{}: expected \"tasks.command\" to begin with a program, found an empty list",
               section.file());
  section.get("held_out", own.held_out, 0, kMost);
  if (own.file.empty() && (section.has("reward") || section.has("command") || own.held_out > 0))
    fail_usage("{}: expected a file of problems beside a reward, found none", section.file());
  if (!own.file.empty() && section.has("kinds"))
    fail_usage("{}: expected kinds of made problems or a file of one's own, found both",
               section.file());
  if (!own.file.empty()) own.file = beside(recipe.path, own.file);
  const std::vector<std::string> known(kTaskNames.begin(), kTaskNames.end() - 1);
  Tasks found = 0;
  for (const std::string& name : section.names("kinds", known))
    found |= bit_of(static_cast<Task>(std::find(known.begin(), known.end(), name) - known.begin()));
  if (found) tasks = found;
  section.finish();
}

void read_policy(TomlSection section, PolicyOptions& policy) {
  get_named(section, "method", kMethods, policy.method);
  // GRPO is defined with PPO's clipping; it acts only where sampler and trainer differ.
  if (policy.method == Method::grpo) policy.correction = Correction::clipped;
  get_named(section, "correction", kCorrections, policy.correction);
  section.get("clip", policy.clip, 0, 1);
  section.get("cap", policy.cap, 0, 1e6);
  section.get("reference", policy.reference, 0, 1e3);
  section.finish();
}

void read_sampler(TomlSection& section, SamplerOptions& sampler) {
  section.get("arithmetic", sampler.arithmetic, {"portable", "hopper", "control"});
  std::vector<std::string> formats = rounding_formats();
  formats.insert(formats.begin(), "exact");
  section.get("weights", sampler.weights, formats);
  section.get("replay_routes", sampler.replays_routes);
}

void read_engine(TomlSection section, EngineOptions& engine) {
  section.get("scheduler", engine.scheduler.policy);
  section.get("max_num_seqs", engine.scheduler.max_num_seqs, 1, 65536);
  section.get("max_num_batched_tokens", engine.scheduler.max_num_batched_tokens, 1, 1 << 20);
  section.get("block_size", engine.block_size, 32, 128);
  section.get("prefix_caching", engine.prefix_caching);
  section.finish();
}

std::vector<Variant> read_runs(TomlSection& root, const RlRecipe& recipe) {
  std::vector<Variant> runs;
  for (TomlSection& section : root.list("runs")) {
    Variant run{{}, recipe.sampler, recipe.policy.correction};
    section.require("name");
    section.get("name", run.name);
    read_sampler(section, run.sampler);
    get_named(section, "correction", kCorrections, run.correction);
    section.finish();
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

RlRecipe read_rl_recipe(const std::string& path) {
  const toml::table table = parse_toml(path);
  RlRecipe r;
  r.path = path;
  TomlSection root(&table, "", path);
  read_name(root, r.name, r.seed);
  root.require("model");
  root.get("model", r.model);
  r.model = beside(path, r.model);
  read_tasks(root.section("tasks"), r);
  TomlSection rollouts = root.section("rollouts");
  rollouts.get("prompts", r.prompts, 1, kMost);
  rollouts.get("answers", r.answers, 2, 1024);
  rollouts.get("max_tokens", r.max_tokens, 1, kMost);
  rollouts.finish();
  read_policy(root.section("policy"), r.policy);
  read_training(root.section("training"), r.trainer);
  r.sampler.arithmetic = name_of(r.trainer.order);
  TomlSection sampler = root.section("sampler");
  read_sampler(sampler, r.sampler);
  sampler.finish();
  r.engine.block_size = 32;
  read_engine(root.section("engine"), r.engine);
  r.trainer.rows = r.trainer.groups * r.trainer.batch_rows;
  read_optimizer(root.section("optimizer"), r.trainer.optimizer);
  read_evaluation(root.section("evaluation"), "problems", r.evaluation_problems, r.evaluate_every,
                  0);
  read_checkpoint(root.section("checkpoint"), r.save_every);
  if (!r.own.file.empty() && r.evaluation_problems > r.own.held_out)
    fail_usage("{}: expected at most the {} held-out problems to evaluate with, found {}", path,
               r.own.held_out, r.evaluation_problems);
  r.runs = read_runs(root, r);
  root.finish();
  return r;
}

json::Value RlRecipe::identity(const std::string& model_digest) const {
  json::Value identity =
      json::Object{{"seed", seed},
                   {"first weights", model_digest},
                   {"tasks", int64_t{tasks}},
                   {"prompts", prompts},
                   {"answers", answers},
                   {"max tokens", max_tokens},
                   {"groups", trainer.groups},
                   {"method", kMethods[static_cast<size_t>(policy.method)]},
                   {"correction", kCorrections[static_cast<size_t>(policy.correction)]},
                   {"policy clip", policy.clip},
                   {"policy cap", policy.cap},
                   {"reference", policy.reference},
                   {"sampler arithmetic", sampler.arithmetic},
                   {"sampler weights", sampler.weights}};
  if (sampler.replays_routes) identity.set("replayed routes", true);
  set_identity(identity, trainer);
  return identity;
}

}  // namespace invar::rl
