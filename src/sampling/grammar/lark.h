// Grammars as Lark writes them, which OpenAI's custom tools have: rules of texts, regular
// expressions and terminals.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace invar::grammar::lark {

struct Node {
  enum Kind { kText, kPattern, kRange, kName, kSequence, kChoice, kRepeat } kind = kSequence;
  std::string text = {};  // a literal, a regular expression, a name; the first of a range
  std::string last = {};  // of a range
  std::vector<Node> children = {};
  int32_t low = 0, high = 0;  // of a repetition
};

struct Grammar {
  std::map<std::string, Node> definitions;  // rules and terminals
  std::vector<Node> ignored;                // what may stand before any terminal
};

// Throws UsageError for what is not understood.
Grammar parse(std::string_view text);

// Whether a name is a terminal's: it has capital letters.
bool is_terminal(std::string_view name);

}  // namespace invar::grammar::lark
