#include "train/rl/rl_recipe.h"

#include "base/error.h"
#include "train/rl/rounding.h"

namespace invar::rl {

namespace {

const std::vector<std::string> kMethods = {"reinforce", "grpo", "rloo", "dr_grpo", "dapo"};
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
  section.get("python", own.python);
  if (section.has("reward") + section.has("command") + section.has("python") > 1)
    fail_usage(
        "{}: expected a reward by name, the command of a program or a Python function, found two",
        section.file());
  if (section.has("command") && own.command.empty())
    fail_usage("{}: expected \"tasks.command\" to begin with a program, found an empty list",
               section.file());
  section.get("held_out", own.held_out, 0, kMost);
  if (own.file.empty() && (section.has("reward") || section.has("command") ||
                           section.has("python") || own.held_out > 0))
    fail_usage("{}: expected a file of problems beside a reward, found none", section.file());
  if (!own.file.empty() && section.has("kinds"))
    fail_usage("{}: expected kinds of made problems or a file of one's own, found both",
               section.file());
  if (!own.file.empty()) own.file = beside(recipe.path, own.file);
  if (!own.python.empty()) own.python = beside(recipe.path, own.python);
  const std::vector<std::string> known(kTaskNames.begin(), kTaskNames.end() - 1);
  Tasks found = 0;
  for (const std::string& name : section.names("kinds", known))
    found |= bit_of(static_cast<Task>(std::find(known.begin(), known.end(), name) - known.begin()));
  if (found) tasks = found;
  section.finish();
}

void read_policy(TomlSection section, PolicyOptions& policy) {
  get_named(section, "method", kMethods, policy.method);
  // GRPO and its kin are defined with PPO's clipping; it acts only where sampler and trainer
  // differ, as behind the first of several updates.
  const bool is_grpo = policy.method != Method::reinforce && policy.method != Method::rloo;
  if (is_grpo) policy.correction = Correction::clipped;
  get_named(section, "correction", kCorrections, policy.correction);
  section.get("clip", policy.clip, 0, 1);
  policy.clip_high = policy.method == Method::dapo ? 0.28 : policy.clip;
  section.get("clip_high", policy.clip_high, 0, 100);
  section.get("cap", policy.cap, 0, 1e6);
  section.get("reference", policy.reference, 0, 1e3);
  section.get("updates", policy.updates, 1, 1024);
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

// Refuses settings that do not go together.
void check_policy(const RlRecipe& r) {
  const SamplingParams& s = r.trainer.sampled;
  const bool filters = s.top_p != 1 || s.top_k > 0 || s.min_p != 0;
  const auto refuse = [&](const char* expected, const char* found) {
    fail_usage("{}: expected {}, found {}", r.path, expected, found);
  };
  if (filters && r.policy.reference > 0)
    refuse("no reference beside top_p, top_k and min_p", "one, which may leave other tokens out");
  if (filters && !r.samples_trained_policy())
    refuse("the trained policy as the sampler beside top_p, top_k and min_p",
           "another, which may draw what the trainer leaves out");
  if (r.trainer.lora.is_on() && !r.samples_trained_policy())
    refuse("the trained policy as the sampler beside [lora]", "another");
  for (const Variant& run : r.runs) {
    if (run.sampler.arithmetic == name_of(r.trainer.order) && run.sampler.weights == "exact")
      continue;
    if (filters)
      refuse("the trained policy as the sampler of every run beside top_p, top_k and min_p",
             "another");
    if (r.trainer.lora.is_on())
      refuse("the trained policy as the sampler of every run beside [lora]", "another");
  }
  if (r.policy.updates > 1 && r.policy.correction == Correction::none)
    refuse("a correction, clipped or truncated, beside several updates",
           "none: behind the first the sampler is an older policy");
  if (r.trainer.optimizer.steps % r.policy.updates != 0)
    refuse("a number of steps that policy.updates divides", "another");
  if (r.turns > 1 && r.own.command.empty() && r.own.python.empty())
    refuse("a command or a Python function that answers beside several turns", "none");
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
  rollouts.get("turns", r.turns, 1, 1024);
  SamplingParams sampled;
  rollouts.get("temperature", sampled.temperature, 0.01, 100.0);
  rollouts.get("top_p", sampled.top_p, 1e-6, 1.0);
  rollouts.get("top_k", sampled.top_k, 0, kMost);
  rollouts.get("min_p", sampled.min_p, 0.0, 1.0);
  rollouts.finish();
  read_policy(root.section("policy"), r.policy);
  read_training(root.section("training"), r.trainer);
  read_lora(root, r.model, r.trainer.lora);
  r.trainer.sampled = sampled;
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
  check_policy(r);
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
  // Settings that an earlier version had without saying so are not said.
  const SamplingParams& s = trainer.sampled;
  if (policy.clip_high != policy.clip) identity.set("policy clip_high", policy.clip_high);
  if (policy.updates != 1) identity.set("updates", policy.updates);
  if (turns != 1) identity.set("turns", turns);
  if (s.temperature != 1) identity.set("temperature", s.temperature);
  if (s.top_p != 1) identity.set("top_p", s.top_p);
  if (s.top_k > 0) identity.set("top_k", s.top_k);
  if (s.min_p != 0) identity.set("min_p", s.min_p);
  set_identity(identity, trainer);
  set_lora(identity, trainer.lora);
  return identity;
}

}  // namespace invar::rl
