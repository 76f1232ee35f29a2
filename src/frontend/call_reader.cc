#include "frontend/call_reader.h"

#include <algorithm>

#include "base/ends.h"
#include "frontend/thoughts.h"

namespace invar {

namespace {

using Kind = AnswerPiece::Kind;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n;,") == text.npos;
}

}  // namespace

void add_pieces(const std::vector<AnswerPiece>& pieces, std::string& content,
                std::vector<ToolCall>& calls) {
  for (const AnswerPiece& piece : pieces) {
    if (piece.kind == Kind::text) content += piece.text;
    if (piece.kind == Kind::call) calls.push_back({piece.text, ""});
    if (piece.kind == Kind::arguments) last_of(calls).arguments += piece.text;
  }
}

ToolCallReader::ToolCallReader(ToolFormat format, std::string name, const json::Value* tools)
    : format_(format), name_(std::move(name)), tools_(tools ? tools : &no_tools_) {
  if (is_whole_answer()) at_ = At::head;
}

bool ToolCallReader::is_whole_answer() const {
  return format_ == ToolFormat::bare || format_ == ToolFormat::object ||
         format_ == ToolFormat::pythonic;
}

void ToolCallReader::push(std::string_view text, Pieces& pieces) {
  if (text.empty()) return;
  if (format_ == ToolFormat::none) return say(text, pieces);
  if (format_ == ToolFormat::arguments) {
    if (!called_) begin(name_, pieces);
    return add(Kind::arguments, text, pieces);
  }
  held_ += text;
  while (!held().empty() && (at_ == At::text        ? read_text(pieces)
                             : at_ == At::head      ? read_head(pieces)
                             : at_ == At::arguments ? read_arguments(pieces)
                                                    : read_tail(pieces))) {
  }
  held_.erase(0, std::exchange(taken_, 0));
}

bool ToolCallReader::read_text(Pieces& pieces) {
  const std::string_view open = opening_mark(format_), bare = unwrapped_mark(format_);
  const std::string_view text = held();
  const size_t at = open.empty() ? text.npos : text.find(open);
  const size_t unwrapped = bare.empty() ? text.npos : text.substr(0, at).find(bare);
  const size_t held = std::max(open.empty() ? 0 : beginning_of(open, text),
                               bare.empty() ? 0 : beginning_of(bare, text));
  const size_t end = std::min({at, unwrapped, text.size() - held});
  say(take(end), pieces);
  if (unwrapped != text.npos) {
    at_ = At::head;
    return true;
  }
  if (at == text.npos) return false;
  take(open.size());
  mark_ = open;
  at_ = At::head;
  return true;
}

bool ToolCallReader::read_head(Pieces& pieces) {
  const CallHead head = read_call_head(format_, held(), *tools_, !called_, search_);
  if (head.kind == CallHead::Kind::more) return false;
  search_ = {};
  const std::string taken = take(head.bytes);
  ends_ = head.ends;
  if (head.kind == CallHead::Kind::call) {
    begin(head.name, pieces);
    arguments_ = arguments_of(format_, head.name, *tools_);
    at_ = At::arguments;
    return true;
  }
  const bool is_skipped = head.kind == CallHead::Kind::skip;
  if (head.kind == CallHead::Kind::text || (is_skipped && head.ends && !mark_.empty())) {
    say(std::exchange(mark_, {}) + taken, pieces);
  } else if (is_skipped) {
    if (!called_ || !mark_.empty()) mark_ += taken;
  } else {
    begin(head.name, pieces);
    add(Kind::arguments, head.arguments, pieces);
    add(Kind::end, "", pieces);
  }
  leave(head.ends);
  return true;
}

bool ToolCallReader::read_arguments(Pieces& pieces) {
  std::string json;
  take(arguments_->read(held(), json));
  add(Kind::arguments, json, pieces);
  if (!arguments_->is_over()) return false;
  add(Kind::end, "", pieces);
  scan_ = BracketScan(1);
  const CallTail tail = tail_of(format_);
  const bool has_tail = !tail.mark.empty() || (tail.closes && !ends_);
  if (has_tail)
    at_ = At::tail;
  else
    leave(ends_);
  return true;
}

bool ToolCallReader::read_tail(Pieces&) {
  const CallTail tail = tail_of(format_);
  if (tail.closes) {
    const size_t end = scan_.end_in(held());
    take(end ? end : held().size());
    if (end) leave(tail.ends);
    return end > 0;
  }
  // A call that is not closed swallows nothing: what can be no part of its end is text.
  take(std::min(held().find_first_not_of(" \t\r\n}]`"), held().size()));
  if (held().size() < tail.mark.size() && tail.mark.starts_with(held())) return false;
  if (held().starts_with(tail.mark)) take(tail.mark.size());
  leave(tail.ends);
  return true;
}

void ToolCallReader::finish(Pieces& pieces, bool is_cut) {
  finish_calls(pieces, is_cut);
  if (spoke_) add(Kind::text, gap_, pieces);
}

void ToolCallReader::finish_calls(Pieces& pieces, bool is_cut) {
  if (format_ == ToolFormat::arguments && !called_) begin(name_, pieces);
  if (at_ == At::arguments && !is_cut) {
    std::string missing;
    arguments_->close(held(), missing);
    add(Kind::arguments, missing, pieces);
  }
  if (format_ == ToolFormat::arguments || at_ == At::arguments) add(Kind::end, "", pieces);
  const std::string rest = std::exchange(held_, {});
  if (at_ == At::text) say(rest, pieces);
  if (at_ != At::head) return;
  std::vector<ToolCall> calls;
  read_last_calls(format_, rest, calls);
  // Nothing of an answer that is held to a call is text, wherever it is cut; nor is a call that was
  // cut where calls are marked.
  const bool is_held = format_ == ToolFormat::object;
  if (calls.empty() && (is_held || is_cut)) read_cut_call(format_, rest, *tools_, calls);
  for (const ToolCall& call : calls) {
    begin(call.name, pieces);
    add(Kind::arguments, call.arguments, pieces);
    add(Kind::end, "", pieces);
  }
  if (!calls.empty() || is_held || (is_cut && !is_whole_answer())) return;
  if (!called_ || !mark_.empty() || !is_blank(rest)) say(mark_ + rest, pieces);
}

void ToolCallReader::begin(const std::string& name, Pieces& pieces) {
  called_ = true;
  mark_.clear();
  gap_.clear();
  spoke_ = false;
  pieces.push_back({Kind::call, name});
}

// Blank text between calls, or behind the last one, is none.
void ToolCallReader::say(std::string_view text, Pieces& pieces) {
  if (!called_) return add(Kind::text, text, pieces);
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;  // 0: it is all blank
  if (end > 0) {
    add(Kind::text, std::exchange(gap_, {}) + std::string(text.substr(0, end)), pieces);
    spoke_ = true;
  }
  gap_ += text.substr(end);
}

void ToolCallReader::add(AnswerPiece::Kind kind, std::string_view text, Pieces& pieces) {
  if (text.empty() && kind != Kind::end) return;
  if (kind != Kind::end && !pieces.empty() && last_of(pieces).kind == kind)
    last_of(pieces).text += text;
  else
    pieces.push_back({kind, std::string(text)});
}

std::string ToolCallReader::take(size_t bytes) {
  std::string piece(held().substr(0, bytes));
  taken_ += bytes;
  return piece;
}

}  // namespace invar
