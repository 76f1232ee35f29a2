#include "model/shard.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/layout.h"

namespace invar {

HeadShare heads_of(const DecoderSpec& spec, const AttentionSpec& attention, const Shard& shard) {
  HeadShare share{.heads = spec.heads / shard.size};
  share.first_head = shard.rank * share.heads;
  const int heads_per_kv = spec.heads / spec.kv_heads_of(attention);
  share.first_kv_head = share.first_head / heads_per_kv;
  share.kv_heads = (share.first_head + share.heads - 1) / heads_per_kv - share.first_kv_head + 1;
  return share;
}

namespace {

void expect_even_heads(const DecoderSpec& spec, const Shard& shard) {
  for (const LayerSpec& layer : spec.layer_specs) {
    const AttentionSpec attention = layer.attention() ? *layer.attention() : AttentionSpec{};
    const HeadShare share = heads_of(spec, attention, shard);
    const int kv_heads = spec.kv_heads_of(attention), heads_per_kv = spec.heads / kv_heads;
    if (share.heads % share.kv_heads != 0 ||
        (share.kv_heads > 1 && share.heads / share.kv_heads != heads_per_kv))
      fail_usage("{} ranks do not share out {} query heads over {} key/value heads evenly",
                 shard.size, spec.heads, kv_heads);
  }
}

}  // namespace

Shard make_shard(const DecoderSpec& spec, int rank, int size, LayerRange layers) {
  const int most = most_ranks(spec);
  if (size > 1 && spec.joint_qk_norm)
    fail_usage("{} ranks were asked for; the norm of all of a row's heads needs one rank", size);
  if (size < 1 || (size & (size - 1)) != 0 || size > most)
    fail_usage(
        "{} ranks were asked for; this model can be cut into 1 to {} (powers of two), the fewest "
        "runs of a row-parallel product",
        size, most);
  Shard shard{.rank = rank, .size = size};
  expect_even_heads(spec, shard);
  shard.vocab_stride = static_cast<int>(round_up((spec.vocab + size - 1) / size, kPanelWidth));
  shard.first_vocab = std::min(spec.vocab, rank * shard.vocab_stride);
  shard.vocab = std::min(shard.vocab_stride, spec.vocab - shard.first_vocab);
  shard.has_head = layers.end >= spec.layers;
  shard.has_embedding = layers.begin == 0 || (shard.has_head && spec.mtp_layers > 0);
  shard.layers = {layers.begin, shard.has_head ? spec.all_layers() : layers.end};
  return shard;
}

}  // namespace invar
