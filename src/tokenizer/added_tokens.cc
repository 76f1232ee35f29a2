#include "tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace invar::tokenizer {

namespace {

bool is_white_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

// \w as Unicode's annex on regular expressions defines it.
bool is_word(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  constexpr uint32_t kMasks =
      U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;  // marks, decimal digits, connectors
  return u_isUAlphabetic(code) || (U_GET_GC_MASK(code) & kMasks) ||
         u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL);
}

// The beginning of the character that ends at `end` > 0.
uint32_t step_back(std::string_view text, uint32_t end) {
  do --end;
  while (utf8::is_continuation(text[end]));
  return end;
}

uint32_t white_space_before(std::string_view text, uint32_t at, uint32_t limit) {
  while (at > limit) {
    const uint32_t begin = step_back(text, at);
    if (!is_white_space(utf8::decode(text, begin))) break;
    at = begin;
  }
  return at;
}

uint32_t white_space_behind(std::string_view text, uint32_t at) {
  while (at < text.size() && is_white_space(utf8::decode(text, at))) at += utf8::length(text[at]);
  return at;
}

bool stands_alone(std::string_view text, Span match) {
  return (match.begin == 0 || !is_word(utf8::decode(text, step_back(text, match.begin)))) &&
         (match.end == text.size() || !is_word(utf8::decode(text, match.end)));
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  may_begin_[static_cast<unsigned char>(content[0])] = true;
  int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    auto& next = nodes_[node].next;
    const auto at = std::lower_bound(next.begin(), next.end(), std::pair(byte, INT32_MIN));
    if (at != next.end() && at->first == byte) {
      node = at->second;
    } else {
      const auto fresh = static_cast<int32_t>(nodes_.size());
      next.insert(at, {byte, fresh});
      nodes_.emplace_back();
      node = fresh;
    }
  }
  if (nodes_[node].entry >= 0) return;
  nodes_[node].entry = static_cast<int32_t>(entries_.size());
  entries_.push_back({token.id, token.single_word, token.lstrip, token.rstrip, token.special});
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, uint32_t at) const {
  Match longest;
  int32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& next = nodes_[node].next;
    const auto found = std::lower_bound(next.begin(), next.end(), std::pair(byte, INT32_MIN));
    if (found == next.end() || found->first != byte) break;
    node = found->second;
    if (nodes_[node].entry >= 0) longest = {static_cast<uint32_t>(i + 1 - at), nodes_[node].entry};
  }
  return longest;
}

void AddedTokenFinder::find(std::string_view text, bool parse_special,
                            FunctionRef<void(Span, int32_t)> found) const {
  const auto size = static_cast<uint32_t>(text.size());
  uint32_t done = 0;  // everything before was handed out
  for (uint32_t at = 0; at < size;) {
    if (!may_begin_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text, at);
    if (match.length == 0) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[match.entry];
    Span span{at, at + match.length};
    at = span.end;  // a match that is not taken hides shorter ones inside it
    if (entry.special && !parse_special) continue;
    if (entry.single_word && !stands_alone(text, span)) continue;
    if (entry.lstrip) span.begin = white_space_before(text, span.begin, done);
    if (entry.rstrip) span.end = white_space_behind(text, span.end);
    if (done < span.begin) found({done, span.begin}, -1);
    found(span, entry.id);
    done = std::max(done, span.end);
  }
  if (done < size) found({done, size}, -1);
}

}  // namespace invar::tokenizer
