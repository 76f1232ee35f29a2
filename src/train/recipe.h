// A recipe: everything that the weights of a trained model depend on, as a TOML file.
#pragma once

#include <limits>
#include <string>

#include "base/json.h"
#include "base/toml.h"
#include "train/corpus/corpus.h"
#include "train/trainer.h"

namespace invar {

struct Recipe {
  std::string path;
  std::string name;
  uint64_t seed = 1;         // of the first weights
  uint64_t corpus_seed = 1;  // see train/corpus/corpus.h
  corpus::Kinds corpus_kinds = corpus::kAllKinds;

  std::string base;  // a model directory, beside whose model an adapter is trained; or none

  // A tokenizer of its own, learned from the first documents, or that of another model.
  std::string tokenizer_from;  // a model directory
  int64_t tokenizer_documents = 4000;

  TrainerOptions trainer;  // with a base its model is filled when that is loaded
  std::string teacher;     // a model directory; trainer.teacher is filled when it is loaded

  // Nothing below shows in the weights.
  int64_t evaluation_documents = 200;
  int64_t evaluate_every = 100, save_every = 100;  // steps

  // All that shows in the weights: a checkpoint goes on only under an equal recipe.
  json::Value identity() const;
};

// Recipes of all kinds share these: tables of a file, a directory relative to the recipe's own,
// settings that show in the weights.
inline constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // where nothing else limits
void read_training(TomlSection section, TrainerOptions& options);
void read_optimizer(TomlSection section, OptimizerOptions& options);
// [lora], where it is there; `base`: the directory of the model, as the recipe names it.
void read_lora(TomlSection& root, const std::string& base, LoraOptions& options);
void read_corpus(TomlSection section, uint64_t& seed, corpus::Kinds& kinds);
void read_name(TomlSection& root, std::string& name, uint64_t& seed);
// So many documents or problems, `what`; every so many steps.
void read_evaluation(TomlSection section, const char* what, int64_t& count, int64_t& every,
                     int64_t least = 1);
void read_checkpoint(TomlSection section, int64_t& every);
std::string beside(const std::string& recipe, const std::string& directory);
void set_identity(json::Value& identity, const TrainerOptions& options);
void set_optimizer(json::Value& identity, const OptimizerOptions& options);
// Nothing where there is no adapter.
void set_lora(json::Value& identity, const LoraOptions& options);

// Directories are relative to the recipe's own. Throws UsageError naming file, line and key for
// what is unknown, missing, of a wrong type or out of range.
Recipe read_recipe(const std::string& path);

}  // namespace invar
