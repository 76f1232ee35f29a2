// Cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/jinja/value.h"

namespace invar::jinja {

enum class TokenKind {
  data,  // text outside of tags
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  number,
  symbol,
  end,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of data, names, symbols; a string's value
  Value number;

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  bool is_symbol(std::string_view t) const { return is(TokenKind::symbol, t); }
  bool is_name(std::string_view t) const { return is(TokenKind::name, t); }
};

// Throws Fault with its line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace invar::jinja
