// The front of a text that may go on: its words, and how far it was searched.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "frontend/argument_reader.h"

namespace invar {

inline constexpr std::string_view kGaps = " \t\r\n";
inline constexpr size_t kNotThere = std::string_view::npos;

// Takes kGaps off the front.
void skip_spaces(std::string_view& text);

// Reads words, spaces before them left out.
class FrontReader {
 public:
  explicit FrontReader(std::string_view text) : text_(text) {}

  // Whether the word is next, behind spaces: then takes it.
  bool take(std::string_view word);
  // A text of JSON in quotation marks; nothing where none is next, or its end has not come.
  std::optional<std::string> quoted();
  // Whether a word that was asked for may be there when more has come.
  bool ends() const { return ends_; }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
  bool ends_ = false;
};

// Remembers how far the front of a place was searched while its kind is open: each byte that comes
// is looked at once.
class FrontSearch {
 public:
  // Bytes of the front that are all among `gaps`.
  size_t gaps(std::string_view text, std::string_view gaps);
  // Where `mark` begins; npos: it has not come.
  size_t find(std::string_view text, std::string_view mark);
  // BracketScan's.
  size_t end_of_object(std::string_view text);

  bool is_none = false;  // no call begins here, whatever comes

 private:
  size_t gaps_ = 0, looked_ = 0;
  BracketScan brackets_;
};

}  // namespace invar
