// Attention to the keys and values of a sequence, whatever made the queries: what all kinds of it
// have in common.
#pragma once

#include "model/chosen_slots.h"
#include "model/parts/part_of.h"

namespace invar {

class Attend {
 public:
  struct Arrays {
    float* products;       // [T][(H + 2G) * E]: queries, keys and values before their rotation
    bf16_t* q;             // [T][H][round_up(E, 32)]; f32 where the cache is
    Activation out;        // [T][H * E]
    float* max = nullptr;  // [T][H] or null; see PartialAttentionParams
    float* sum = nullptr;
    bool products_are_wanted = false;  // somebody keeps them
    const float* sinks = nullptr;      // [H] or null
  };

  Attend(const PartPass& pass, const DecoderSpec& model, const AttentionSpec& spec,
         const HeadShare& share, const Arrays& at)
      : p_(pass), model_(model), spec_(spec), share_(share), at_(at) {}

  // Keys and values of drafts that were accepted go to their slots, in the layer that has them.
  void copy_slots() const;
  // Queries and keys turn by `rope`, behind their norms or without them.
  QkvParams rotation(const RopeTable& rope, const float* q_norm, const float* k_norm) const;
  // Whether attention itself does that.
  bool rotates() const;
  // In 8 bits every row reads what is stored, its own key and value too.
  void store_slots() const;
  void run(const QkvParams& rotation) const;
  // Attention of the rows [first, first + rows): to the slots that their sequences left, or to
  // those that were gathered for each.
  void run_rows(int64_t first, int64_t rows, const ChosenSlots* gathered) const;
  int64_t products_width() const {
    const int kv_heads = spec_.shares_keys ? 0 : share_.kv_heads;
    return int64_t{share_.heads + 2 * kv_heads} * model_.head_dim_of(spec_);
  }

 private:
  AttentionParams params() const;
  PartialAttentionParams params_ahead() const;

  const PartPass& p_;
  const DecoderSpec& model_;
  const AttentionSpec& spec_;
  const HeadShare& share_;
  const Arrays& at_;
};

// From the gradient of what attention left to those of rotated queries and keys, and of values:
// [T][width], in workspace().qkv.
void attend_backward(BackwardPass& b, const AttentionSpec& spec, const KvLayer& kv,
                     const Attend::Arrays& at, const Activation& d_out, int64_t width);
// Back through the rotation, there; rounded in workspace().wide. Norms are the caller's to add.
QkvBackwardParams rotation_backward(const BackwardPass& b, int layer, int64_t width);

}  // namespace invar
