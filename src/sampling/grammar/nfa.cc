#include "sampling/grammar/nfa.h"

#include <algorithm>

#include "base/error.h"

namespace invar::grammar {

Nfa::State Nfa::add_state() {
  if (states_.size() >= static_cast<size_t>(kMaxStates))
    fail_usage("the grammar is too large: it needs more than {} states", kMaxStates);
  states_.emplace_back();
  return static_cast<State>(states_.size()) - 1;
}

Nfa::State Nfa::add_bytes(State from, uint8_t low, uint8_t high) {
  const State to = add_state();
  states_[from].edges.push_back({low, high, to});
  return to;
}

Nfa::State Nfa::add_text(State from, std::string_view bytes) {
  for (const char byte : bytes)
    from = add_bytes(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte));
  return from;
}

namespace {

int encode(char32_t c, uint8_t* bytes) {
  if (c < 0x80) return bytes[0] = static_cast<uint8_t>(c), 1;
  const int size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = size - 1; i > 0; --i, c >>= 6) bytes[i] = static_cast<uint8_t>(0x80 | (c & 0x3f));
  bytes[0] = static_cast<uint8_t>((0xf0 << (4 - size)) | c);
  return size;
}

}  // namespace

// Ranges whose encodings have one length are cut until, behind the first byte that differs, all
// continuations are allowed.
void Nfa::add_byte_sequences(State from, State to, char32_t low, char32_t high) {
  static constexpr char32_t kLastOfLength[] = {0x7f, 0x7ff, 0xffff};
  for (const char32_t last : kLastOfLength)
    if (low <= last && high > last) {
      add_byte_sequences(from, to, low, last);
      return add_byte_sequences(from, to, last + 1, high);
    }
  for (int continuations = 1; continuations < 4; ++continuations) {
    const char32_t mask = (char32_t{1} << (6 * continuations)) - 1;
    if (low <= 0x7f || (low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_byte_sequences(from, to, low, low | mask);
      return add_byte_sequences(from, to, (low | mask) + 1, high);
    }
    if ((high & mask) != mask) {
      add_byte_sequences(from, to, low, (high & ~mask) - 1);
      return add_byte_sequences(from, to, high & ~mask, high);
    }
  }
  uint8_t first[4], last[4];
  const int size = encode(low, first);
  encode(high, last);
  for (int i = 0; i + 1 < size; ++i) from = add_bytes(from, first[i], last[i]);
  states_[from].edges.push_back({first[size - 1], last[size - 1], to});
}

Nfa::State Nfa::add_character(State from, const CodePoints& ranges) {
  const State to = add_state();
  for (const auto& [low, high] : ranges) {  // surrogates have no encoding
    if (low < 0xd800) add_byte_sequences(from, to, low, std::min<char32_t>(high, 0xd7ff));
    if (high > 0xdfff) add_byte_sequences(from, to, std::max<char32_t>(low, 0xe000), high);
  }
  return to;
}

Nfa::State Nfa::add_repeated(State from, int low, int high, FunctionRef<State(State)> add) {
  for (int i = 0; i < low; ++i) from = add(from);
  if (high < 0) {
    const State loop = add_state(), end = add_state();
    add_empty(from, loop);
    add_empty(add(loop), loop);
    add_empty(loop, end);
    return end;
  }
  const State end = add_state();
  for (int i = low; i < high; ++i) {
    add_empty(from, end);
    from = add(from);
  }
  add_empty(from, end);
  return end;
}

Nfa::State Nfa::add_choice(State from, size_t count, FunctionRef<State(State, size_t)> add) {
  const State end = add_state();
  for (size_t i = 0; i < count; ++i) {
    const State begin = add_state();
    add_empty(from, begin);
    add_empty(add(begin, i), end);
  }
  return end;
}

}  // namespace invar::grammar
