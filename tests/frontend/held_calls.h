// Answers that are held to a form, character by character.
#pragma once

#include <string>
#include <string_view>

#include "sampling/constraint.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::testing_frontend {

inline const Tokenizer& made_tokenizer() {
  static const Tokenizer kTokenizer = Tokenizer::from_texts(make_tokenizer(400, 1).texts, "made");
  return kTokenizer;
}

inline bool matches(Constraint& held, std::string_view text) {
  Constraint::State state = held.start();
  for (const char c : text) {
    int32_t token = 0;
    while (made_tokenizer().is_special(token) ||
           made_tokenizer().token_bytes(token) != std::string(1, c))
      ++token;
    state = held.next(state, token);
    if (state.is_dead()) return false;
  }
  return state.accepts;
}

}  // namespace invar::testing_frontend
