// Streamed text on a terminal, broken between words.
#pragma once

#include <string>
#include <string_view>

namespace invar::cli {

// Takes text in pieces and returns what to print. The last word is held until its end is known, so
// that it is never torn; a word that is wider than a line is cut.
class WordWrap {
 public:
  explicit WordWrap(int columns) : columns_(columns < 2 ? 2 : columns) {}

  std::string add(std::string_view piece);
  std::string finish();  // the last word
  // An escape sequence, which takes no room, before what comes next.
  void style(std::string_view escape) { word_ += escape; }

 private:
  void put_word(std::string& out);

  int columns_;
  int at_ = 0;          // columns of the line that are taken
  int spaces_ = 0;      // that came after the last word
  std::string word_;    // whose end has not come
  int word_width_ = 0;  // its columns
};

// Columns of the terminal that the standard output is.
int terminal_columns();
// Whether it understands escape sequences: TERM is set, and not dumb.
bool knows_escapes();
// Whether it has styles: it understands escape sequences, and NO_COLOR is not set.
bool shows_styles();
// A locale in which characters are UTF-8, for their widths; numbers stay as in C.
void use_utf8();

}  // namespace invar::cli
