#include "train/row_packer.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {

constexpr size_t kWindow = 64;  // documents that wait for a row with room

}  // namespace

void append_sequence(PackedRow& row, const Document& document) {
  const size_t count = document.tokens.size();
  row.begins.push_back(static_cast<int32_t>(row.tokens.size()));
  for (size_t i = 0; i < count; ++i) {
    const bool has_next = i + 1 < count;
    row.tokens.push_back(document.tokens[i]);
    row.targets.push_back(has_next ? document.tokens[i + 1] : 0);
    row.weights.push_back(has_next && document.wanted[i + 1] ? 1.0f : 0.0f);
  }
}

void fill_row(PackedRow& row, int context, int32_t pad) {
  const size_t left = static_cast<size_t>(context) - row.tokens.size();
  if (left) append_sequence(row, {std::vector<int32_t>(left, pad), std::vector<uint8_t>(left, 0)});
}

RowPacker::RowPacker(DocumentSource& source, int context, int32_t pad)
    : source_(source), context_(context), pad_(pad) {
  CHECK(context > 0 && context % 32 == 0, "rows hold whole leaves");
}

void RowPacker::add(const State::Piece& piece, const Document& whole) {
  const auto end = std::min<int64_t>(piece.begin + context_, std::ssize(whole.tokens));
  Waiting waiting{piece, {}};
  waiting.document.tokens.assign(whole.tokens.begin() + piece.begin, whole.tokens.begin() + end);
  waiting.document.wanted.assign(whole.wanted.begin() + piece.begin, whole.wanted.begin() + end);
  waiting_.push_back(std::move(waiting));
}

void RowPacker::refill() {
  while (waiting_.size() < kWindow) {
    const Document whole = source_.document(next_);
    for (int64_t begin = 0; begin < std::ssize(whole.tokens); begin += context_)
      add({next_, begin}, whole);
    ++next_;
  }
}

PackedRow RowPacker::next() {
  PackedRow row;
  while (row.begins.size() < kMaxSequencesPerRow - 1) {
    refill();
    const size_t room = static_cast<size_t>(context_) - row.tokens.size();
    auto best = waiting_.end();
    for (auto i = waiting_.begin(); i != waiting_.end(); ++i) {
      const size_t size = i->document.tokens.size();
      if (size <= room && (best == waiting_.end() || size > best->document.tokens.size())) best = i;
    }
    if (best == waiting_.end()) break;
    append_sequence(row, best->document);
    waiting_.erase(best);
  }
  fill_row(row, context_, pad_);
  return row;
}

RowPacker::State RowPacker::state() const {
  State state{next_, {}};
  for (const Waiting& w : waiting_) state.waiting.push_back(w.piece);
  return state;
}

void RowPacker::restore(const State& state) {
  waiting_.clear();
  for (const State::Piece& piece : state.waiting) add(piece, source_.document(piece.document));
  next_ = state.next;
}

}  // namespace invar
