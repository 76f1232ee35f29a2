#include "terminal_markdown.h"

#include <utility>

namespace invar::cli {

namespace {

constexpr std::string_view kMarks = "*`~#";

bool is_space(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\t';
}

// Whether the byte is part of a word, in any script.
bool is_letter(char byte) {
  return static_cast<signed char>(byte) < 0 || (byte >= '0' && byte <= '9') ||
         ((byte | 32) >= 'a' && (byte | 32) <= 'z');
}

void append(std::vector<StyledText>& out, TextStyle style, std::string_view text) {
  if (out.empty() || out.back().style != style) out.push_back({style, {}});
  out.back().text += text;
}

}  // namespace

std::string_view escape_of(TextStyle style) {
  switch (style) {
    case TextStyle::bold:
      return "\x1b[0;1m";
    case TextStyle::code:
      return "\x1b[0;36m";
    case TextStyle::thought:
      return "\x1b[0;2m";
    case TextStyle::plain:
      break;
  }
  return "\x1b[0m";
}

std::vector<StyledText> TerminalMarkdown::add(std::string_view piece) {
  std::vector<StyledText> out;
  for (const char byte : piece) {
    const bool is_mark = kMarks.find(byte) != kMarks.npos;
    if (!run_.empty() && byte != run_[0]) put_run(byte, out);
    if (is_mark)
      run_ += byte;
    else
      put(byte, out);
  }
  return out;
}

std::vector<StyledText> TerminalMarkdown::finish() {
  std::vector<StyledText> out;
  if (!run_.empty()) put_run('\n', out);
  return out;
}

TextStyle TerminalMarkdown::style() const {
  if (!fence_.empty() || !code_.empty()) return TextStyle::code;
  return is_bold_ || is_heading_ ? TextStyle::bold : TextStyle::plain;
}

void TerminalMarkdown::put_run(char next, std::vector<StyledText>& out) {
  const std::string run = std::exchange(run_, {});
  const TextStyle before = style();
  turn(run, next);
  append(out, before == TextStyle::plain ? style() : before, run);
  last_ = run.back();
  is_blank_ = false;
}

void TerminalMarkdown::turn(const std::string& run, char next) {
  const char mark = run[0];
  if (!fence_.empty()) {
    if (is_blank_ && run.starts_with(fence_)) fence_.clear();
  } else if (is_blank_ && run.size() >= 3 && (mark == '`' || mark == '~')) {
    fence_ = run;
  } else if (!code_.empty()) {
    if (run == code_) code_.clear();
  } else if (mark == '`') {
    code_ = run;
  } else if (mark == '#') {
    is_heading_ |= is_blank_ && run.size() <= 6 && next == ' ';
  } else if (mark == '*' && run.size() >= 2 && run.size() <= 3) {
    is_bold_ = is_bold_ ? is_space(last_) : !is_letter(last_) && !is_space(next);
  }
}

void TerminalMarkdown::put(char byte, std::vector<StyledText>& out) {
  if (byte == '\n') {
    code_.clear();
    is_heading_ = is_bold_ = false;
  }
  append(out, style(), std::string_view(&byte, 1));
  last_ = byte;
  is_blank_ = byte == '\n' || (is_blank_ && byte == ' ');
}

}  // namespace invar::cli
