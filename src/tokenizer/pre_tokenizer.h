// Cuts text into the pieces ("words") that byte pairs are merged in.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tokenizer/regex.h"

namespace invar::tokenizer {

// Text and the pieces of it that are kept, in order, none empty.
struct Pieces {
  std::string text;
  std::vector<Span> spans;
};

// The treatment of a pattern's matches, by the names in tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Cuts every piece at the matches of a pattern, each piece seen as a text of its own.
struct Split {
  Regex pattern;
  SplitBehavior behavior;
  bool invert = false;  // the text between the matches plays the part of the matches
};

// A space before every piece that does not begin with one (ByteLevel's add_prefix_space).
struct PrefixSpace {};

// Spaces become `mark`, and pieces get one in front unless they begin with it.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string mark;
  Prepend prepend;
};

// The pieces as byte_level.h spells them, for stages that stand behind ByteLevel in the file, and
// the bytes again. Such stages may cut a character apart, so only bytes can follow.
struct SpellBytes {};
struct ReadSpelling {};

using PreTokenizerStep = std::variant<Split, PrefixSpace, Metaspace, SpellBytes, ReadSpelling>;

// Applies the steps in order. `pieces` holds valid UTF-8 text under 2 GiB and one piece, all of it;
// `at_start` says that it is the beginning of the user's text (Metaspace::Prepend::kFirst).
void pre_tokenize(const std::vector<PreTokenizerStep>& steps, bool at_start, Pieces& pieces);

}  // namespace invar::tokenizer
