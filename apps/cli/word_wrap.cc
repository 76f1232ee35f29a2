#include "word_wrap.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cwchar>

namespace invar::cli {

namespace {

bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

// Columns of the UTF-8 character that `bytes` are; 1 where they are none.
int width_of(std::string_view bytes) {
  wchar_t wide = 0;
  std::mbstate_t state{};
  const size_t size = std::mbrtowc(&wide, bytes.data(), bytes.size(), &state);
  if (size == static_cast<size_t>(-1) || size == static_cast<size_t>(-2)) return 1;
  return std::max(0, wcwidth(wide));
}

}  // namespace

std::string WordWrap::add(std::string_view piece) {
  std::string out;
  for (size_t i = 0; i < piece.size();) {
    size_t end = i + 1;
    while (end < piece.size() && !begins_character(piece[end])) ++end;
    const std::string_view character = piece.substr(i, end - i);
    i = end;
    if (character == "\n") {
      put_word(out);
      out += '\n';
      at_ = spaces_ = 0;
    } else if (character == " ") {
      put_word(out);
      ++spaces_;
    } else {
      const int width = width_of(character);
      if (word_width_ + width > columns_) put_word(out);
      word_ += character;
      word_width_ += width;
    }
  }
  return out;
}

std::string WordWrap::finish() {
  std::string out;
  put_word(out);
  return out;
}

void WordWrap::put_word(std::string& out) {
  if (word_.empty()) return;
  if (at_ > 0 && at_ + spaces_ + word_width_ > columns_) {
    out += '\n';
    at_ = 0;
  } else {
    spaces_ = std::min(spaces_, columns_ - at_ - word_width_);
    out.append(static_cast<size_t>(spaces_), ' ');
    at_ += spaces_;
  }
  out += word_;
  at_ += word_width_;
  spaces_ = word_width_ = 0;
  word_.clear();
}

int terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool knows_escapes() {
  const char* term = std::getenv("TERM");
  return term && *term && std::string_view(term) != "dumb";
}

bool shows_styles() {
  const char* no_color = std::getenv("NO_COLOR");
  return knows_escapes() && !(no_color && *no_color);
}

void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace invar::cli
