#include "train/teacher.h"

#include "train/packed_batch.h"

namespace invar {

Teacher::Teacher(const TeacherOptions& options, const Kernels& kernels, Device& device,
                 ThreadPool& pool, int rows, int context, int max_aux_layers)
    : weights_(options.model.spec, {.order = kernels.order}, make_shard(options.model.spec, 0, 1),
               *options.weights, device, pool, kernels.weights),
      decoder_(options.model.spec, {.order = kernels.order}, kernels, weights_, device,
               device.is_host() ? &pool : nullptr),
      kv_(device, states_of(options.model.spec),
          packed_store(options.model.spec, rows, context, kernels.cache)),
      workspace_(decoder_, rows * context, rows * context, max_aux_layers),
      scores_(rows * context) {}

const Scores& Teacher::run(const Batch& batch) {
  forward(decoder_, batch, kv_, workspace_, solo_group(), io_);
  scores_.compute(decoder_, io_.logits.data(), std::ssize(batch.rows));
  return scores_;
}

const float* Teacher::logits(const Batch& batch) {
  io_.keep_logits = true;
  forward(decoder_, batch, kv_, workspace_, solo_group(), io_);
  return io_.device_logits;
}

}  // namespace invar
