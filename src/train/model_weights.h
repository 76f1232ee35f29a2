// A model's weights as a trainer's forward and backward read them.
#pragma once

#include <memory>

#include "model/decoder_weights.h"
#include "model/transposed_weights.h"
#include "train/trainer.h"
#include "train/training_device.h"

namespace invar {

struct ModelWeights {
  // A model that is trained: its weights come with every step. `in_turn`: one layer is there at
  // a time, or its matrices the other way round are.
  ModelWeights(const TrainerOptions& options, const TrainingDevice& on, bool in_turn);
  // A model that stays as it is; the ranks of a process share it.
  ModelWeights(const TrainerOptions& options, const TrainingDevice& on, const TensorSource& weights,
               ThreadPool& pool);

  std::shared_ptr<Device> device;
  DecoderWeights forward;
  TransposedWeights backward;
};

// The model beside which an adapter is trained; null where there is no adapter.
std::shared_ptr<ModelWeights> frozen_weights(const TrainerOptions& options);

}  // namespace invar
