#include "tokenizer/pre_tokenizer.h"

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/normalizer.h"

namespace invar::tokenizer {

namespace {

struct Part {
  Span span;
  bool is_match;
};

// The matches and what lies between them, covering `piece`, in places of the whole text.
void cut(Regex::Search& search, std::string_view text, Span piece, bool invert,
         std::vector<Part>& parts) {
  parts.clear();
  const std::string_view own = piece.of(text);
  uint32_t done = 0;
  const auto add = [&](uint32_t begin, uint32_t end, bool is_match) {
    if (begin != end)
      parts.push_back({{piece.begin + begin, piece.begin + end}, is_match != invert});
  };
  Span match;
  while (done < own.size() && search.next(own, done, match)) {
    add(done, match.begin, false);
    add(match.begin, match.end, true);
    done = match.end;
  }
  add(done, static_cast<uint32_t>(own.size()), false);
}

void join(SplitBehavior behavior, const std::vector<Part>& parts, std::vector<Span>& out) {
  const size_t first = out.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool before = i > 0 && parts[i - 1].is_match;
    bool joins = false;
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (parts[i].is_match) continue;
        break;
      case SplitBehavior::kIsolated:
        break;
      // Among several matches in a row only the one beside other text is merged with it.
      case SplitBehavior::kMergedWithPrevious:
        joins = parts[i].is_match && !before;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = before && !parts[i].is_match;
        break;
      case SplitBehavior::kContiguous:
        joins = parts[i].is_match == before;
        break;
    }
    if (joins && out.size() > first) {
      out.back().end = parts[i].span.end;
    } else {
      out.push_back(parts[i].span);
    }
  }
}

void apply(const Split& split, bool, Pieces& pieces) {
  Regex::Search search(split.pattern);
  std::vector<Part> parts;
  std::vector<Span> spans;
  for (const Span piece : pieces.spans) {
    cut(search, pieces.text, piece, split.invert, parts);
    join(split.behavior, parts, spans);
  }
  pieces.spans = std::move(spans);
}

// Makes a new text out of the pieces, each rewritten.
template <typename Rewrite>
void rewrite(Pieces& pieces, Rewrite rewrite_piece) {
  std::string text, one;
  for (Span& span : pieces.spans) {
    one = span.of(pieces.text);
    rewrite_piece(span, one);
    if (text.size() + one.size() > INT32_MAX)
      fail_usage("the text grows beyond 2 GiB while it is cut into words");
    span.begin = static_cast<uint32_t>(text.size());
    text += one;
    span.end = static_cast<uint32_t>(text.size());
  }
  pieces.text = std::move(text);
}

void apply(const PrefixSpace&, bool, Pieces& pieces) {
  rewrite(pieces, [](Span, std::string& piece) {
    if (!piece.starts_with(' ')) piece.insert(0, 1, ' ');
  });
}

void apply(const Metaspace& metaspace, bool at_start, Pieces& pieces) {
  rewrite(pieces, [&](Span span, std::string& piece) {
    replace_all(piece, {" ", metaspace.mark}, SIZE_MAX);
    const bool first = at_start && span.begin == 0;
    const bool wanted = metaspace.prepend == Metaspace::Prepend::kAlways ||
                        (metaspace.prepend == Metaspace::Prepend::kFirst && first);
    if (wanted && !piece.starts_with(metaspace.mark)) piece.insert(0, metaspace.mark);
  });
}

void apply(const SpellBytes&, bool, Pieces& pieces) {
  rewrite(pieces, [](Span, std::string& piece) { piece = spelling_of(piece); });
}

void apply(const ReadSpelling&, bool, Pieces& pieces) {
  rewrite(pieces, [](Span, std::string& piece) { piece = bytes_from_spelling(piece).value(); });
}

}  // namespace

void pre_tokenize(const std::vector<PreTokenizerStep>& steps, bool at_start, Pieces& pieces) {
  for (const PreTokenizerStep& step : steps)
    std::visit([&](const auto& s) { apply(s, at_start, pieces); }, step);
}

}  // namespace invar::tokenizer
