// A frozen model that runs over the batches of another.
#pragma once

#include "kv/kv_storage.h"
#include "model/decoder.h"
#include "model/forward.h"
#include "train/scores.h"
#include "train/trainer.h"

namespace invar {

class Teacher {
 public:
  // For batches of up to `max_rows` rows in up to `blocks` blocks of `block_size`.
  Teacher(const TeacherOptions& options, const std::string& instruction_set, Device& device,
          ThreadPool& pool, int max_rows, int blocks, int block_size);

  // Its scores live until the next batch.
  const Scores& run(const Batch& batch);
  const Scores& scores() const { return scores_; }

 private:
  DecoderWeights weights_;
  Decoder decoder_;
  KvStorage kv_;
  Workspace workspace_;
  Scores scores_;
};

}  // namespace invar
