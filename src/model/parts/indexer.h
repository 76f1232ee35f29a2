// The indexer of a layer with latent attention (numerics 4.6): its own queries, one key of each
// position, and attention to the positions that have the highest scores.
#pragma once

#include "model/parts/attend.h"

namespace invar {

struct IndexerWeights {
  Matrix queries;  // [heads * size][what queries are made of]
  Matrix key;      // [size][D]
  Matrix weights;  // [heads][D]
  const float *key_norm = nullptr, *key_norm_bias = nullptr;  // [size]
};

struct IndexerActivations {
  float* queries = nullptr;  // [T][heads * size]
  float* key = nullptr;      // [T][size]
  float* weights = nullptr;  // [T][heads]
  Activation q;              // the queries, rounded
};

class Indexer {
 public:
  Indexer(const DecoderSpec& model, const IndexerSpec& spec, int layer)
      : model_(model), spec_(spec), layer_(layer) {}

  int index_dim() const { return spec_.is_shared ? 0 : spec_.size; }
  // Every rank has all of it. `made_of`: what queries are made of.
  void visit(IndexerWeights& w, TensorVisitor& tensors, const TensorAxis& made_of) const;
  void place(ActivationMemory& memory, IndexerActivations& at) const;
  // Queries of the rows, from `query`; their keys in their slots, and weights, from `normed`.
  void prepare(const PartPass& p, const IndexerWeights& w, const IndexerActivations& at,
               const Activation& normed, const Activation& query) const;
  // Attention of every row to all positions before it, or to as many of them as it may choose.
  void attend(const PartPass& p, const IndexerActivations& at, const Attend& attend) const;

 private:
  struct Rows {
    int64_t first, count;
  };

  void turn(const PartPass& p, float* x, int heads) const;
  // The rows from `first` on that see as few positions as they may choose, as the first of them
  // does, or that do not; of these as many as are gathered at a time.
  Rows alike_from(const PartPass& p, int64_t first) const;
  bool sees_few(const PartPass& p, int64_t row) const {
    return p.ops.tables().positions[row] < spec_.most;
  }
  void choose(const PartPass& p, const IndexerActivations& at, Rows rows) const;
  void gather(const PartPass& p, Rows rows) const;

  const DecoderSpec& model_;
  const IndexerSpec spec_;
  const int layer_;
};

}  // namespace invar
