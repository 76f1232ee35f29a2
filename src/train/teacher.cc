#include "train/teacher.h"

#include "kernels/select.h"

namespace invar {

Teacher::Teacher(const TeacherOptions& options, const std::string& instruction_set, Device& device,
                 ThreadPool& pool, int max_rows, int blocks, int block_size, int max_aux_layers)
    : weights_(options.model.spec, {}, make_shard(options.model.spec, 0, 1), *options.weights,
               device, pool),
      decoder_(options.model.spec, {}, select_kernels(Order::portable, instruction_set), weights_,
               device, &pool),
      kv_(device, states_of(options.model.spec), {.blocks = blocks, .block_size = block_size}),
      workspace_(decoder_, max_rows, max_rows, max_aux_layers),
      scores_(max_rows) {}

const Scores& Teacher::run(const Batch& batch) {
  forward(decoder_, batch, kv_, workspace_, solo_group(), io_);
  scores_.compute(decoder_, io_.logits.data(), std::ssize(batch.rows));
  return scores_;
}

}  // namespace invar
