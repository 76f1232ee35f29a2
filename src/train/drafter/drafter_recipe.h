// A recipe for a drafter that is trained behind a frozen target: a TOML file with a table
// [drafter].
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "model/decoder_spec.h"
#include "train/adamw.h"
#include "train/corpus/corpus.h"

namespace invar {

enum class DrafterMethod { medusa, eagle3 };

struct DrafterSpec {
  DrafterMethod method = DrafterMethod::medusa;
  int levels = 4;      // Medusa: heads; EAGLE-3: steps that it is unrolled for
  float decay = 0.8f;  // what a level counts, as a part of the one before
  // The rest is EAGLE-3's: its layer, the tokens that it knows, and the target's layers whose
  // inputs it reads.
  int hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int vocab = 0;
  int64_t vocab_documents = 4000;  // of the corpus, among whose tokens the frequent ones are
  std::vector<int> features;       // three, ascending; the target's number of layers: its output
};

struct DrafterRecipe {
  std::string path, name;
  uint64_t seed = 1, corpus_seed = 1;
  corpus::Kinds corpus_kinds = corpus::kAllKinds;
  std::string target;  // a model directory
  DrafterSpec drafter;
  int context = 512, rows = 8;  // of a step
  int batch_rows = 2;           // that are computed at once
  OptimizerOptions optimizer;

  // Nothing below shows in the weights.
  int64_t evaluation_documents = 100;
  int64_t evaluate_every = 100, save_every = 100;  // steps

  // All that shows in the weights beside the target's: a checkpoint goes on only under an equal
  // recipe.
  json::Value identity() const;
};

// Whether a recipe is one for a drafter. Throws as below when it is no TOML.
bool is_drafter_recipe(const std::string& path);

// The target's directory is relative to the recipe's own. Throws UsageError naming file, line and
// key for what is unknown, missing, of a wrong type or out of range.
DrafterRecipe read_drafter_recipe(const std::string& path);

// Throws UsageError unless the drafter fits the target.
void check_drafter(const DrafterRecipe& recipe, const DecoderSpec& target);

}  // namespace invar
