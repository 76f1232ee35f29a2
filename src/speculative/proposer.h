// A method of speculative decoding is a way to propose. The engine verifies, accepts and keeps
// drafts (engine/step.cc), the same way for all.
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

class Executor;

// A sequence whose next token is to be sampled.
struct DraftRequest {
  int64_t id = 0;                   // of the request
  std::span<const int32_t> tokens;  // all known ones: prompt and answer so far
  int32_t prompt_size = 0;          // how many of them are the prompt
  const SamplingParams* params = nullptr;
  int32_t choice = 0;  // which of the n answers, for the noise
  // Drafts are the drafter's likeliest tokens and not its samples: what acceptance by rejection
  // takes most of (speculative/rejection.h).
  bool wants_argmax = false;
  int32_t most = 0;  // nodes that the tree may have
  // Names what may be drafted from beside the sequence: earlier answers of the same owner. Empty:
  // nothing.
  std::string_view corpus = {};
  std::span<const int32_t> prediction = {};  // what the request says that the answer may be
  // The sequence's blocks of the target, which have room for `most` tokens behind the known ones,
  // and how many of its tokens have keys and values there.
  std::span<const int32_t> blocks = {};
  int32_t computed = 0;
};

// The rows of a step that a proposer which runs the target's first layers has computed: the last
// known token, which stands at `position`, and the first drafts of a chain.
struct ComputedRows {
  int32_t position = 0;
  std::span<const float> hidden;  // [rows][the target's width], behind these layers
};

// The rows of one sequence that a step computed and kept: rows of the batch, each one position
// after the one before it, along known tokens and accepted drafts.
struct KeptRows {
  int64_t id = 0;                   // of the request
  std::span<const int32_t> tokens;  // all known ones after the step
  int32_t position = 0;             // of the first row
  std::span<const int32_t> rows;    // indices into the batch
};

// The abilities of a proposer beside proposing; each is one of these (Proposer::hidden_reader and
// so on).

// Reads the target's hidden states.
class HiddenReader {
 public:
  virtual ~HiddenReader() = default;

  // Layers of the target after which it wants the hidden state of every row of the next step,
  // ascending; see Batch::aux_layers.
  virtual std::span<const int32_t> aux_layers() const = 0;
  // Called after a step with what was kept of each sequence that goes on, and the hidden states of
  // the whole batch: [aux_layers][batch_rows][the target's width]. They are gone afterwards. A
  // sequence may begin behind position 0 (the prefix cache had the rest) and, after a preemption,
  // again.
  virtual void take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                           int64_t batch_rows) = 0;
};

// Wants to know the likeliest token (raw logits, ties to the lower id) after every node of its
// trees, reached or not.
class ArgmaxReader {
 public:
  virtual ~ArgmaxReader() = default;

  // The argmax in the tree proposed last: tokens[0] after the root, tokens[1 + i] after node i. A
  // tree that was pruned on the way has fewer.
  virtual void observe_argmax(int64_t id, std::span<const int32_t> tokens) = 0;
};

// Runs the target's first layers on the target's own blocks. Their keys, values and hidden states
// are then the target's to the bit, and a step goes on from them.
class LayerSharer {
 public:
  virtual ~LayerSharer() = default;

  virtual int32_t shared_layers() const = 0;
  // Takes the executor that has the target's keys and values; before the first draft. It outlives
  // the drafts.
  virtual void share(const Executor& target) = 0;
  // For a request of the last round that has a draft. Gone with the next round.
  virtual ComputedRows computed_rows(int64_t id) const = 0;
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
  // Null: it does not do that. The same for its life.
  virtual HiddenReader* hidden_reader() { return nullptr; }
  virtual ArgmaxReader* argmax_reader() { return nullptr; }
  virtual LayerSharer* layer_sharer() { return nullptr; }
  // The target's workers have failed: keys and values that lay there are lost, of the target and of
  // drafts.
  virtual void recover() {}
  // The first `accepted` levels of a path were kept of a tree with `proposed` nodes.
  virtual void observe(int64_t /*id*/, int32_t /*proposed*/, int32_t /*accepted*/) {}
  // A step that computed no prompt had so many rows and took this time; drafting not counted.
  virtual void observe_step(int64_t /*rows*/, double /*seconds*/) {}
  // The request has ended or was aborted; unknown ids are ignored.
  virtual void forget(int64_t /*id*/) {}
};

}  // namespace invar
