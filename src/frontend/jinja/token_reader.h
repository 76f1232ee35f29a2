// Reads a template's tokens one after the other, and bounds how deeply they are nested.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/jinja/lexer.h"

namespace invar::jinja {

// The most levels of expressions and blocks within one another, and of one chain of operators.
inline constexpr int kMaxNesting = 200;

class TokenReader {
 public:
  explicit TokenReader(std::string_view source) : tokens_(tokenize(source)) {}

 protected:
  using Names = std::initializer_list<std::string_view>;

  class Nested {
   public:
    explicit Nested(TokenReader& reader) : depth_(reader.depth_) {
      if (++depth_ > kMaxNesting) fault("the template is nested too deeply");
    }
    ~Nested() { --depth_; }

   private:
    int& depth_;
  };

  // A chain of operators grows to the left: its length is its depth.
  static void count_chain(int& length) {
    if (++length > kMaxNesting) fault("an expression has too many operators in a row");
  }

  const Token& here() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_symbol(std::string_view s) { return here().is_symbol(s) && (take(), true); }
  bool skip_name(std::string_view s) { return here().is_name(s) && (take(), true); }

  static std::string described(const Token& token) {
    switch (token.kind) {
      case TokenKind::end:
        return "the end of the template";
      case TokenKind::block_end:
        return "%}";
      case TokenKind::variable_end:
        return "}}";
      case TokenKind::data:
        return "text";
      default:
        return json::quoted(token.text);
    }
  }
  [[noreturn]] void unexpected(std::string_view expected) const {
    fault(fmt::format("expected {}, found {}", expected, described(here())));
  }
  void expect_symbol(std::string_view s) {
    if (!skip_symbol(s)) unexpected(s);
  }
  std::string expect_name() {
    if (here().kind != TokenKind::name) unexpected("a name");
    return take().text;
  }
  void expect(TokenKind kind, std::string_view what) {
    if (here().kind != kind) unexpected(what);
    take();
  }
  bool at_any_name(Names names) const {
    return here().kind == TokenKind::name &&
           std::find(names.begin(), names.end(), here().text) != names.end();
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace invar::jinja
