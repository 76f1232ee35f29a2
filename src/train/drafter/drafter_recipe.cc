#include "train/drafter/drafter_recipe.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "train/recipe.h"

namespace invar {

namespace {

const std::vector<std::string> kMethods = {"medusa", "eagle3"};  // as the enumeration

void read_layer(TomlSection& section, DrafterSpec& spec) {
  for (const char* key : {"hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "features"})
    section.require(key);
  section.get("hidden", spec.hidden, 32, kMost);
  section.get("heads", spec.heads, 1, 4096);
  section.get("kv_heads", spec.kv_heads, 1, 4096);
  section.get("head_dim", spec.head_dim, 8, 256);
  section.get("ffn", spec.ffn, 1, kMost);
  section.get("vocab", spec.vocab, 32, kMost);
  section.get("vocab_documents", spec.vocab_documents, 1, 1000000);
  section.get("features", spec.features, 1, 4096);
}

void read_drafter(TomlSection section, DrafterRecipe& recipe) {
  section.require("method");
  section.require("target");
  std::string method;
  section.get("method", method, kMethods);
  DrafterSpec& spec = recipe.drafter;
  spec.method = static_cast<DrafterMethod>(std::ranges::find(kMethods, method) - kMethods.begin());
  section.get("target", recipe.target);
  recipe.target = beside(recipe.path, recipe.target);
  section.get("levels", spec.levels, 1, 16);
  section.get("decay", spec.decay, 0, 1);
  if (spec.method == DrafterMethod::eagle3) read_layer(section, spec);
  section.finish();
}

}  // namespace

bool is_drafter_recipe(const std::string& path) {
  return parse_toml(path).contains("drafter");
}

DrafterRecipe read_drafter_recipe(const std::string& path) {
  const toml::table table = parse_toml(path);
  DrafterRecipe r;
  r.path = path;
  TomlSection root(&table, "", path);
  read_name(root, r.name, r.seed);
  read_corpus(root.section("corpus"), r.corpus_seed, r.corpus_kinds);
  read_drafter(root.section("drafter"), r);
  TomlSection training = root.section("training");
  training.get("context", r.context, 32, kMost);
  training.get("rows", r.rows, 1, kMost);
  training.get("batch_rows", r.batch_rows, 1, 65536);
  training.finish();
  read_optimizer(root.section("optimizer"), r.optimizer);
  read_evaluation(root.section("evaluation"), "documents", r.evaluation_documents,
                  r.evaluate_every);
  read_checkpoint(root.section("checkpoint"), r.save_every);
  root.finish();
  return r;
}

json::Value DrafterRecipe::identity() const {
  json::Value identity = json::Object{{"seed", seed},
                                      {"corpus seed", corpus_seed},
                                      {"corpus kinds", int64_t{corpus_kinds}},
                                      {"training", "train-1/drafter"},
                                      {"method", kMethods[static_cast<size_t>(drafter.method)]},
                                      {"levels", drafter.levels},
                                      {"decay", json::shortest(drafter.decay)},
                                      {"rows", rows},
                                      {"batch rows", batch_rows},
                                      {"context", context}};
  set_optimizer(identity, optimizer);
  if (drafter.method != DrafterMethod::eagle3) return identity;
  identity.set("hidden", drafter.hidden);
  identity.set("heads", drafter.heads);
  identity.set("kv_heads", drafter.kv_heads);
  identity.set("head_dim", drafter.head_dim);
  identity.set("ffn", drafter.ffn);
  identity.set("vocab", drafter.vocab);
  identity.set("vocab_documents", drafter.vocab_documents);
  identity.set("features", json::Array(drafter.features.begin(), drafter.features.end()));
  return identity;
}

void check_drafter(const DrafterRecipe& r, const DecoderSpec& target) {
  const DrafterSpec& d = r.drafter;
  const auto require = [&](bool good, const char* expected, int64_t found) {
    if (!good) fail_usage("{}: expected {}, found {}", r.path, expected, found);
  };
  require(r.context % 32 == 0, "a context of a multiple of 32", r.context);
  require(r.context <= target.max_positions, "a context within the target's positions", r.context);
  require(r.optimizer.warmup < r.optimizer.steps, "fewer steps of warm-up than steps",
          r.optimizer.warmup);
  require(target.hidden % 32 == 0, "a target whose width is a multiple of 32", target.hidden);
  if (d.method != DrafterMethod::eagle3) return;
  require(d.hidden % 32 == 0, "a \"hidden\" of a multiple of 32", d.hidden);
  require(d.head_dim % 8 == 0, "a \"head_dim\" of a multiple of 8", d.head_dim);
  require(d.heads % d.kv_heads == 0, "\"heads\" that \"kv_heads\" share evenly", d.heads);
  require(d.vocab <= target.vocab, "at most the target's vocabulary as \"vocab\"", d.vocab);
  const bool ascend = std::ranges::is_sorted(d.features, std::ranges::less_equal());
  if (d.features.size() != 3 || !ascend || d.features.back() > target.layers)
    fail_usage("{}: expected \"features\" as three of the layers 1 to {}, ascending, found [{}]",
               r.path, target.layers, fmt::join(d.features, ", "));
}

}  // namespace invar
