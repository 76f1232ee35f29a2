// The feed-forward half of a layer whose every row goes through one gated network.
#include "model/forward_pass.h"

namespace invar {

// h = h + down(silu(gate(norm(h))) * up(norm(h)))
void ForwardPass::ffn_dense(int layer) {
  const LayerWeights& w = weights(layer);
  const LayerActivations& at = hooks_.layer(layer);
  hooks_.keep_hidden(at.middle);
  ops_.norm(hidden(), w.ffn_norm, at.ffn_normed);
  hooks_.trace("ffn_norm", layer, at.ffn_normed, spec_.hidden, rows_);

  ops_.gated_product(w, at, ops_.plan().after_gate_up(layer));
  hooks_.trace("gated", layer, at.gated, shard_.ffn, rows_);

  ops_.add_product("down", at.gated, w.down, shard_.down_runs, w.down_bias,
                   ops_.plan().after_down(layer));
  hooks_.trace("down", layer, hidden(), spec_.hidden, rows_);
}

}  // namespace invar
