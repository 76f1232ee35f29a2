// The share of one rank of a tensor-parallel group in a model (numerics 2), in one pipeline stage.
#pragma once

#include <limits>

#include "model/arithmetic.h"
#include "model/decoder_spec.h"
#include "model/expert_placement.h"

namespace invar {

// Layers [begin, end) of a model.
struct LayerRange {
  int begin = 0, end = std::numeric_limits<int>::max();  // the latter stands for the model's last
};

struct Shard {
  int rank = 0, size = 1;
  int vocab = 0, first_vocab = 0;  // rows of the head
  int vocab_stride = 0;            // rows per rank, whole panels: first_vocab = rank * vocab_stride
  bool has_one_run = false;        // of every row-parallel product (Arithmetic::chain)
  LayerRange layers;               // of its pipeline stage
  ExpertPlacement placement;       // of the experts of all ranks
  bool has_embedding = true, has_head = true;  // the head, and the final norm before it

  bool has_layer(int layer) const { return layers.begin <= layer && layer < layers.end; }
  // This rank's runs of a row-parallel product that is cut into `runs` (numerics 2).
  int runs(int runs) const { return has_one_run ? 1 : runs / size; }
};

// The heads of a layer's attention that a rank has, and every key/value head that these use.
struct HeadShare {
  int heads = 0, first_head = 0;
  int kv_heads = 0, first_kv_head = 0;
};
HeadShare heads_of(const DecoderSpec& spec, const AttentionSpec& attention, const Shard& shard);

// Throws UsageError when the model cannot be cut that way: the size must divide both run counts and
// the query heads. `layers`: of a pipeline stage; the first has the embedding, the last the head
// and, with the embedding once more, the module that predicts one token further.
Shard make_shard(const DecoderSpec& spec, int rank, int size, LayerRange layers = {});

}  // namespace invar
