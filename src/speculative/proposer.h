// What a method of speculative decoding is: a way to propose. How drafts are verified, accepted and
// kept is the engine's (engine/step.cc) and the same for all.
//
// A proposer may be wrong, slow or random: the answer's bits do not depend on it (numerics 6).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sampling/params.h"
#include "speculative/draft_tree.h"

namespace invar {

// A sequence whose next token is to be sampled.
struct DraftRequest {
  int64_t id = 0;                   // of the request
  std::span<const int32_t> tokens;  // all known ones: prompt and answer so far
  int32_t prompt_size = 0;          // how many of them are the prompt
  const SamplingParams* params = nullptr;
  int32_t choice = 0;  // which of the n answers, for the noise
  int32_t most = 0;    // nodes that the tree may have
  // Names what may be drafted from beside the sequence: earlier answers of the same owner. Empty:
  // nothing.
  std::string_view corpus = {};
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  virtual std::string_view name() const = 0;
  // Nodes that it wants for a sequence with each step; at most kMaxDraftNodes.
  virtual int32_t most_nodes() const = 0;
  // Whether its trees have side branches, which need scratch blocks.
  virtual bool makes_branches() const { return false; }
  // trees[i] becomes a tree for requests[i] of at most `most` nodes; empty: no draft. The trees
  // come in cleared.
  virtual void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) = 0;
  // Of a tree with `proposed` nodes the first `accepted` levels of a path were kept.
  virtual void observe(int64_t /*id*/, int32_t /*proposed*/, int32_t /*accepted*/) {}
  // The request has ended or was aborted; unknown ids are ignored.
  virtual void forget(int64_t /*id*/) {}
};

}  // namespace invar
