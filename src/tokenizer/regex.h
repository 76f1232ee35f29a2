// The regular expressions of tokenizer.json, matched by PCRE2's JIT compiler. The files are written
// for Oniguruma; what the two read differently is translated or refused. Character classes are
// those of Unicode 14.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace invar::tokenizer {

// Bytes [begin, end) of a text.
struct Span {
  uint32_t begin = 0, end = 0;
  bool empty() const { return begin == end; }
  std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
};

// Immutable once made; copies share the compiled program.
class Regex {
 public:
  // Throws Error, beginning with `where`, for a pattern that does not compile, that may match
  // nothing at all, or that uses what Oniguruma and PCRE2 understand differently.
  Regex(std::string_view pattern, std::string_view where);
  static Regex literal(std::string_view text);

  // One thread's search: it holds the working memory.
  class Search {
   public:
    explicit Search(const Regex& regex);
    // The first match in valid UTF-8 `text` (under 2 GiB) at or after byte `from`. Matches are
    // never empty. Throws UsageError when the pattern takes too many steps on this text.
    bool next(std::string_view text, uint32_t from, Span& match);

   private:
    const Regex& regex_;
    std::shared_ptr<void> memory_;
  };

 private:
  Regex(std::string_view pattern, std::string_view where, uint32_t options);

  std::shared_ptr<const void> code_;
  bool compiled_by_jit_ = false;
};

}  // namespace invar::tokenizer
