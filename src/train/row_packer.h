// Documents to packed rows. The rows depend on the documents and the state alone; the state is
// small and goes into checkpoints.
#pragma once

#include <deque>

#include "train/packed_row.h"

namespace invar {

// One more sequence of a row: each token is the target of the one before it.
void append_sequence(PackedRow& row, const Document& document);
// Fills the rest of `context` positions with one more sequence, of `pad`.
void fill_row(PackedRow& row, int context, int32_t pad);

// An endless list of documents, the same at every reading.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  virtual Document document(int64_t index) = 0;
};

class RowPacker {
 public:
  // Rows of `context` tokens, a multiple of 32; `pad` fills what no document takes. A longer
  // document is cut into pieces of `context`.
  RowPacker(DocumentSource& source, int context, int32_t pad);

  // The longest waiting document that fits comes next, again and again; of equals the first.
  PackedRow next();

  // The documents that are next to be read: pieces that wait, then all from `next` on.
  struct State {
    struct Piece {
      int64_t document;
      int64_t begin;  // first token
      bool operator==(const Piece&) const = default;
    };
    int64_t next = 0;
    std::vector<Piece> waiting;
    bool operator==(const State&) const = default;
  };
  State state() const;
  void restore(const State& state);

 private:
  struct Waiting {
    State::Piece piece;
    Document document;  // the piece's tokens
  };
  void refill();
  void add(const State::Piece& piece, const Document& whole);

  DocumentSource& source_;
  const int context_;
  const int32_t pad_;
  int64_t next_ = 0;
  std::deque<Waiting> waiting_;
};

}  // namespace invar
