#include "train/recipe.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "model/parts/part.h"

namespace invar {

namespace {

// Networks of families whose layers have experts unless something else is said.
void make_dense(DecoderSpec& spec) {
  for (LayerSpec& layer : spec.layer_specs)
    if (const ExpertsSpec* experts = layer.experts())
      layer.put(DenseFfnSpec{
          .width = experts->width, .curve = experts->curve, .is_gated = experts->is_gated});
}

// As many in the layers that have experts in this family, or in all layers.
void put_experts(DecoderSpec& spec, const Routing& routing, int width) {
  const bool has_some = spec.first<ExpertsSpec>() != nullptr;
  for (LayerSpec& layer : spec.layer_specs) {
    if (!has_some) layer.put(ExpertsSpec{.routing = routing, .width = width});
    if (!layer.experts()) continue;
    layer.experts()->routing.experts = routing.experts;
    layer.experts()->routing.chosen = routing.chosen;
  }
}

void read_model(TomlSection section, ModelConfig& config) {
  DecoderSpec& spec = config.spec;
  std::string family = "qwen3";
  section.get("family", family);
  for (const char* key : {"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab"})
    section.require(key);
  section.get("hidden", spec.hidden, 1, kMost);
  section.get("layers", spec.layers, 1, 1024);
  section.get("heads", spec.heads, 1, 4096);
  section.get("kv_heads", spec.kv_heads, 1, 4096);
  section.get("head_dim", spec.head_dim, 1, 4096);
  LayerSpec layer{.parts = {AttentionSpec{.rope = RopeSpec{.theta = 10000}}, DenseFfnSpec{}}};
  section.get("ffn", layer.ffn()->width, 1, kMost);
  section.get("vocab", spec.vocab, 512, 1 << 22);
  Routing routing{.renormalised = true};
  section.get("experts", routing.experts, 2, Routing::kMaxExperts);
  routing.chosen = std::min(2, routing.experts);
  section.get("chosen_experts", routing.chosen, 1, Routing::kMaxChosen);
  bool is_dense = false;
  section.get("dense", is_dense);
  if (is_dense && routing.experts > 0)
    fail_usage("{}: expected either dense = true or experts, found both", section.file());
  spec.max_positions = 1024;
  section.get("max_positions", spec.max_positions, 32, kMost);
  section.get("rope_theta", layer.attention()->rope->theta, 1, 1e9);
  spec.tied_head = true;
  section.get("tied_head", spec.tied_head);
  spec.norm_eps = 1e-6f;
  spec.set_layers(layer);
  set_family(spec, family);
  if (routing.experts > 0) put_experts(spec, routing, layer.ffn_width());
  if (is_dense) make_dense(spec);
  section.finish();
}

// The model beside which an adapter is trained, which brings its tokenizer.
void read_base(TomlSection& root, Recipe& r) {
  root.require("model");
  root.get("model", r.base);
  r.base = beside(r.path, r.base);
  r.trainer.lora.seed = r.seed;
  read_lora(root, r.base, r.trainer.lora);
  for (const char* other : {"tokenizer", "exits", "mtp", "teacher"})
    if (root.has(other)) fail_usage("{}: expected no [{}] beside [lora], found one", r.path, other);
}

corpus::Kinds read_kinds(TomlSection& section) {
  const std::vector<std::string> known(corpus::kKindNames.begin(), corpus::kKindNames.end());
  corpus::Kinds kinds = 0;
  for (const std::string& name : section.names("kinds", known)) {
    const auto index = std::find(known.begin(), known.end(), name) - known.begin();
    kinds |= corpus::bit_of(static_cast<corpus::Kind>(index));
  }
  return kinds ? kinds : corpus::kAllKinds;
}

}  // namespace

std::string beside(const std::string& recipe, const std::string& directory) {
  return (std::filesystem::path(recipe).parent_path() / directory).lexically_normal().string();
}

void read_training(TomlSection section, TrainerOptions& options) {
  section.get("context", options.context, 32, kMost);
  section.get("groups", options.groups, 1, 1024);
  section.get("batch_rows", options.batch_rows, 1, 65536);
  section.get("recompute", options.recompute);
  std::string arithmetic(name_of(options.order));
  section.get("arithmetic", arithmetic, {"portable", "hopper"});
  options.order = arithmetic == "hopper" ? Order::hopper : Order::portable;
  section.finish();
}

void read_optimizer(TomlSection section, OptimizerOptions& o) {
  section.get("steps", o.steps, 1, kMost);
  section.get("warmup", o.warmup, 0, kMost);
  section.get("rate", o.rate, 0, 1e3);
  section.get("final_rate", o.final_rate, 0, 1);
  section.get("beta1", o.beta1, 0, 1);
  section.get("beta2", o.beta2, 0, 1);
  section.get("eps", o.eps, 0, 1);
  section.get("decay", o.decay, 0, 1);
  section.get("clip", o.clip, 0, 1e9);
  section.finish();
}

void read_lora(TomlSection& root, const std::string& base, LoraOptions& o) {
  TomlSection section = root.section("lora");
  if (!root.has("lora")) return;
  PeftSettings& s = o.settings;
  s.rank = 8;
  section.get("rank", s.rank, 1, kMostAdapterRank);
  s.alpha = 2 * static_cast<double>(s.rank);
  section.get("alpha", s.alpha, 1e-6, 1e6);
  section.get("rslora", s.by_root);
  const toml::node* targets = section.find("target_modules");
  if (targets && targets->is_string())
    section.get("target_modules", s.targets.emplace_back());
  else
    s.targets = section.strings("target_modules");
  if (s.targets.empty()) s.targets = {"q_proj", "v_proj"};
  section.get("seed", o.seed, 0, std::numeric_limits<int64_t>::max());
  section.finish();
  s.base = base;
}

void set_lora(json::Value& identity, const LoraOptions& o) {
  if (!o.is_on()) return;
  const PeftSettings& s = o.settings;
  identity.set("lora",
               json::Object{{"rank", s.rank},
                            {"alpha", json::shortest(s.alpha)},
                            {"rslora", s.by_root},
                            {"target_modules", json::Array(s.targets.begin(), s.targets.end())},
                            {"seed", o.seed}});
}

void read_corpus(TomlSection section, uint64_t& seed, corpus::Kinds& kinds) {
  section.get("seed", seed, 0, std::numeric_limits<int64_t>::max());
  kinds = read_kinds(section);
  section.finish();
}

void read_name(TomlSection& root, std::string& name, uint64_t& seed) {
  root.require("name");
  root.get("name", name);
  root.get("seed", seed, 0, std::numeric_limits<int64_t>::max());
}

void read_evaluation(TomlSection section, const char* what, int64_t& count, int64_t& every,
                     int64_t least) {
  section.get(what, count, least, 1000000);
  section.get("every", every, least, kMost);
  section.finish();
}

void read_checkpoint(TomlSection section, int64_t& every) {
  section.get("every", every, 1, kMost);
  section.finish();
}

void set_identity(json::Value& identity, const TrainerOptions& t) {
  identity.set("training", training_identity(t));
  identity.set("context", t.context);
  set_optimizer(identity, t.optimizer);
}

void set_optimizer(json::Value& identity, const OptimizerOptions& o) {
  identity.set("steps", o.steps);
  identity.set("warmup", o.warmup);
  identity.set("rate", o.rate);
  identity.set("final_rate", o.final_rate);
  identity.set("beta1", json::shortest(o.beta1));
  identity.set("beta2", json::shortest(o.beta2));
  identity.set("eps", json::shortest(o.eps));
  identity.set("decay", json::shortest(o.decay));
  identity.set("clip", o.clip);
}

Recipe read_recipe(const std::string& path) {
  const toml::table table = parse_toml(path);
  Recipe r;
  r.path = path;
  TomlSection root(&table, "", path);
  read_name(root, r.name, r.seed);

  read_corpus(root.section("corpus"), r.corpus_seed, r.corpus_kinds);
  if (root.has("lora")) read_base(root, r);

  TomlSection tokenizer = root.section("tokenizer");
  tokenizer.get("from", r.tokenizer_from);
  tokenizer.get("documents", r.tokenizer_documents, 1, 1000000);
  tokenizer.finish();
  if (!r.tokenizer_from.empty()) r.tokenizer_from = beside(path, r.tokenizer_from);
  if (!r.base.empty()) r.tokenizer_from = r.base;

  root.require("model");
  if (r.base.empty()) read_model(root.section("model"), r.trainer.model);
  TomlSection training = root.section("training");
  training.get("rows", r.trainer.rows, 1, kMost);
  training.get("balance", r.trainer.balance, 0, 1e3);
  read_training(std::move(training), r.trainer);
  read_optimizer(root.section("optimizer"), r.trainer.optimizer);
  for (TomlSection& exit : root.list("exits")) {
    ExitLoss loss;
    exit.get("layers", loss.layers, 1, 1024);
    exit.get("weight", loss.weight, 0, 1e3);
    exit.finish();
    r.trainer.exits.push_back(loss);
  }
  TomlSection mtp = root.section("mtp");
  if (root.has("mtp")) {
    mtp.require("weight");
    mtp.get("weight", r.trainer.mtp_weight, 0, 1e3);
    mtp.get("own_every", r.trainer.mtp_own_every, 2, kMost);
    mtp.finish();
    r.trainer.model.spec.mtp_layers = 1;
  }
  TomlSection teacher = root.section("teacher");
  if (root.has("teacher")) {
    teacher.require("model");
    teacher.get("model", r.teacher);
    teacher.get("share", r.trainer.teacher.share, 0, 1);
    teacher.finish();
    r.teacher = beside(path, r.teacher);
  }
  read_evaluation(root.section("evaluation"), "documents", r.evaluation_documents,
                  r.evaluate_every);
  read_checkpoint(root.section("checkpoint"), r.save_every);
  root.finish();
  if (r.base.empty()) check_spec(r.trainer.model.spec, path);
  return r;
}

json::Value Recipe::identity() const {
  const TrainerOptions& t = trainer;
  json::Array exits;
  for (const ExitLoss& exit : t.exits)
    exits.push_back(json::Object{{"layers", exit.layers}, {"weight", json::shortest(exit.weight)}});
  json::Value identity =
      json::Object{{"seed", seed},
                   {"corpus seed", corpus_seed},
                   {"tokenizer", tokenizer_from.empty() ? "own" : "another model's"},
                   {"tokenizer documents", tokenizer_documents},
                   {"model", config_json(t.model)},
                   {"rows", t.rows},
                   {"groups", t.groups},
                   {"exits", std::move(exits)},
                   {"mtp", json::shortest(t.mtp_weight)},
                   {"teacher", teacher.empty() ? "none" : "a model"},
                   {"teacher share", teacher.empty() ? 0.0 : json::shortest(t.teacher.share)}};
  set_identity(identity, t);
  set_lora(identity, t.lora);
  if (t.mtp_own_every != 0) identity.set("mtp own every", t.mtp_own_every);
  if (t.balance != 0) identity.set("balance", t.balance);
  if (corpus_kinds != corpus::kAllKinds) identity.set("corpus kinds", int64_t{corpus_kinds});
  return identity;
}

}  // namespace invar
