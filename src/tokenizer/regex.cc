#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/error.h"

namespace invar::tokenizer {

namespace {

// Writes an Oniguruma pattern for PCRE2. Refused is what PCRE2 would read as something else without
// a word.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        counted_repeat();
      } else if (c == '^' || c == '$') {  // Oniguruma's match at every line
        out_ += c == '^' ? "(?:\\A|(?<=\\n)(?!\\z))" : "(?=\\n|\\z)";
        ++at_;
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  void copy(size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }
  [[noreturn]] void refuse(std::string_view what, const char* kind) const {
    fail("{}: the pattern \"{}\" uses {} ({}), which is not supported", where_, pattern_, what,
         kind);
  }

  void escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\\';
    if (c == 's' || c == 'S') {  // PCRE2's \s also takes U+180E, no white space since Unicode 6.3
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (const std::string_view name = property(); is_script(name)) {
      // PCRE2's own takes what several scripts use, too.
      const size_t before = static_cast<size_t>(name.data() - rest().data());
      copy(before);
      out_ += "sc:";
      copy(name.size() + 1);
    } else if (std::string_view("pPx").find(c) != std::string_view::npos) {
      const size_t end = rest().substr(0, 3).ends_with('{') ? rest().find('}') : 1;
      copy(end == std::string_view::npos ? rest().size() : end + 1);
    } else if (std::string_view("wWbBhHRXKGQEgk").find(c) != std::string_view::npos) {
      refuse(std::string("\\") + c, "an escape that engines understand differently");
    } else {
      copy(2);
    }
  }

  // The name in \p{name}, \P{name} or \p{^name}.
  std::string_view property() const {
    const size_t end = rest().find('}');
    if (end == rest().npos || !(rest().starts_with("\\p{") || rest().starts_with("\\P{")))
      return {};
    std::string_view name = rest().substr(3, end - 3);
    if (name.starts_with('^')) name.remove_prefix(1);
    return name;
  }

  static bool is_script(std::string_view name) {
    if (name.size() < 3) return false;  // a category
    const std::string script = "\\p{sc:" + std::string(name) + "}";
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(script.data()), script.size(),
                                     PCRE2_UTF, &error, &at, nullptr);
    pcre2_code_free(code);
    return code;
  }

  // An intersection [a&&[b]], which PCRE2 does not have, becomes (?=[a])[b]; others are refused.
  void character_class() {
    const size_t begin = out_.size();
    const bool is_negated = rest().starts_with("[^");
    copy(is_negated ? 2 : 1);
    for (bool first = true; at_ < pattern_.size(); first = false) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (rest().starts_with("&&[") && !is_negated && !first && depth_ < kMostDepth) {
        out_.insert(begin, "(?:(?=");
        out_ += "])";
        at_ += 2;
        ++depth_;
        character_class();
        --depth_;
        if (!rest().starts_with(']')) refuse("&&", "a class inside a class");
        ++at_;
        out_ += ')';
        return;
      } else if (c == '[' || rest().starts_with("&&")) {
        refuse(rest().substr(0, c == '[' ? 1 : 2), "a class inside a class");
      } else {
        copy(1);
        if (c == ']' && !first) return;
      }
    }
  }

  void group() {
    if (rest().starts_with("(?")) {
      bool known = false;
      for (const char* start : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"})
        known |= rest().starts_with(start);
      if (!known) refuse(rest().substr(0, 4), "a kind of group");
      copy(2);
    }
    copy(1);
  }

  void counted_repeat() {
    const size_t end = rest().find('}');
    if (rest().starts_with("{,") ||
        rest().substr(end == std::string_view::npos ? 0 : end).starts_with("}+"))
      refuse(rest().substr(0, end), "a kind of repetition");
    copy(1);
  }

  static constexpr int kMostDepth = 8;  // of classes within one another

  std::string_view pattern_, where_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string out_;
};

const pcre2_code* code_of(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

std::string message_of(int error) {
  unsigned char text[256] = "";
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(std::string_view pattern, std::string_view where)
    : Regex(Translator(pattern, where).run(), where,
            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C) {}

Regex Regex::literal(std::string_view text) {
  return Regex(text, "", PCRE2_UTF | PCRE2_LITERAL);
}

Regex::Regex(std::string_view pattern, std::string_view where, uint32_t options) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options, &error, &at, nullptr);
  if (!code)
    fail("{}: the pattern \"{}\" cannot be read: {} (at byte {})", where, pattern,
         message_of(error), at);
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty)
    fail("{}: the pattern \"{}\" may match nothing, which is not supported", where, pattern);
  // Where memory may not become executable, the interpreter gives the same matches, several times
  // slower.
  compiled_by_jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::Search::Search(const Regex& regex)
    : regex_(regex), memory_(pcre2_match_data_create(1, nullptr), [](void* p) {
        pcre2_match_data_free(static_cast<pcre2_match_data*>(p));
      }) {
  if (!memory_) throw std::bad_alloc();
}

bool Regex::Search::next(std::string_view text, uint32_t from, Span& match) {
  const pcre2_code* code = code_of(regex_.code_);
  auto* data = static_cast<pcre2_match_data*>(memory_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (regex_.compiled_by_jit_)
    rc = pcre2_jit_match(code, subject, text.size(), from, 0, data, nullptr);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter's stack is the heap
    rc = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                     nullptr);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    fail_usage("a pattern of the tokenizer cannot split this text at byte {}: {}", from,
               message_of(rc));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  match = {static_cast<uint32_t>(ends[0]), static_cast<uint32_t>(ends[1])};
  return true;
}

}  // namespace invar::tokenizer
