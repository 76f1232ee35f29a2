#include "drafters/draft_decoder.h"

namespace invar {

DraftDecoder::DraftDecoder(const DecoderSpec& spec, const TensorSource& tensors, Model& target,
                           ThreadPool& pool, const Limits& limits)
    : limits_(limits),
      weights_(spec, {.order = target.arithmetic().order}, make_shard(spec, 0, 1), tensors,
               target.device(), pool, target.workers().home().kernels().weights),
      decoder_(spec, {.order = target.arithmetic().order}, target.workers().home().kernels(),
               weights_, target.device(), target.device().is_host() ? &pool : nullptr),
      kv_(target.device(), states_of(spec),
          {.blocks = limits.blocks,
           .block_size = limits.block_size,
           .layout = decoder_.kernels.cache}),
      workspace_(decoder_, limits.max_rows, limits.max_logit_rows, 1) {
  if (spec.tokens() == 0) decoder_.embedding = target_embedding(target, pool).embedding();
}

// Home's embedding; it is read once more where home has only a part of it, or none.
const DecoderWeights& DraftDecoder::target_embedding(Model& target, ThreadPool& pool) {
  const Worker& home = target.workers().home();
  const DecoderWeights& own = home.weights();
  if (own.shard().has_embedding && own.embedding().k == target.spec().hidden) return own;
  const auto source = open_weights(target.options());
  embedding_ = std::make_unique<DecoderWeights>(target.spec(), target.arithmetic(),
                                                make_shard(target.spec(), 0, 1, {0, 0}), *source,
                                                target.device(), pool, home.kernels().weights);
  return *embedding_;
}

void DraftDecoder::copy_slots(const std::vector<SlotCopy>& copies) {
  if (copies.empty()) return;
  const Execution& on = decoder_.execution;
  copies_.begin(on, StepUpload::bytes_of<SlotCopy>(copies.size()));
  const SlotCopy* list = copies_.put(std::span<const SlotCopy>(copies));
  copies_.send(on);
  for (const KvLayer& layer : kv_.layers())
    decoder_.run(decoder_.kernels.copy_slots, CopySlotsParams{layer, list, std::ssize(copies)});
}

}  // namespace invar
