// The files of a training run. A directory of checkpoints holds "step-NNNNNN", each a model
// directory of its own with the exact state beside it; one that is being written has another name
// until it is whole.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/thread_pool.h"
#include "tokenizer/tokenizer.h"
#include "train/row_packer.h"
#include "train/trainer.h"

namespace invar {

struct RunState {
  TrainingState training;
  RowPacker::State data;
  json::Value recipe;  // Recipe::identity()
};

// A checkpoint as it stands there: the arrays "first", "master" and "second" are read when they are
// asked for.
struct SavedRun {
  int64_t step = 0;
  json::Value recipe;  // that the run goes on with: what was asked for, and how it came here
  RowPacker::State data;
  std::unique_ptr<TensorSource> arrays;
};

// The tokenizer's files of a model directory as they stand there, to be written beside other
// weights. Throws Error when there is no tokenizer.json.
TokenizerTexts read_tokenizer_texts(const std::string& model);

// The id of a token that training needs, such as <|im_end|>. Throws Error when there is none.
int32_t id_of_special(const Tokenizer& tokenizer, const char* name);

// Fills a new directory, which takes the place of `directory` at the end; when anything fails, what
// stood there still does.
void replace_directory(const std::string& directory,
                       const std::function<void(const std::string& directory)>& write_files);
// Writes a model directory (configuration, weights and tokenizer), or the adapter that is trained,
// as PEFT saves it. Where the trainer's ranks are processes, call it within read_together.
void write_model(const std::string& directory, const Trainer& trainer, const TokenizerTexts& texts,
                 ThreadPool& pool);

// Writes step-NNNNNN of the state's step and then removes older ones. `write_files` fills an empty
// directory with what stands beside the state: a model directory.
void save_checkpoint(const std::string& directory, const RunState& state,
                     const std::function<void(const std::string& directory)>& write_files,
                     ThreadPool& pool);
// The same of a trainer of models. Where its ranks are processes, within read_together.
void save_checkpoint(const std::string& directory, const Trainer& trainer,
                     const RowPacker::State& data, const json::Value& recipe,
                     const TokenizerTexts& texts, ThreadPool& pool);

// The newest checkpoint, or none. Throws Error when it is damaged or was made by another recipe
// than `recipe`, naming what differs. One with fewer steps in all is no other where the learning
// rate does not fall; where it does, `extends` says that from here on it falls along the new count,
// and the run's recipe keeps that it did ("extended").
std::optional<SavedRun> find_saved_run(const std::string& directory, const json::Value& recipe,
                                       int64_t state_size, bool extends = false);
// The same, all of it in memory.
std::optional<RunState> load_checkpoint(const std::string& directory, const json::Value& recipe,
                                        int64_t state_size, bool extends = false);

}  // namespace invar
