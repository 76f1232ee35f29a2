// Lines of the standard input: from a terminal with editing and history (libedit), else as they
// come.
#pragma once

#include <memory>
#include <string>

namespace invar::cli {

class LineReader {
 public:
  enum Result { kLine, kEnd, kInterrupted };

  // With `edits` the standard input is a terminal. Its history is read from and kept in
  // `history_file`; an empty name keeps none.
  LineReader(bool edits, const std::string& history_file);
  ~LineReader();

  // Reads a line without its end. A Ctrl-C is kInterrupted, not the end. With editing, what is
  // pasted is one line whatever it has.
  Result read(const std::string& prompt, std::string& line);

 private:
  struct Editor;

  Result read_edited(const std::string& prompt, std::string& line);
  Result read_plain(std::string& line);

  std::unique_ptr<Editor> editor_;
  std::string buffer_;  // bytes after the last line that was returned
};

// Adds a line to a message between three quotes, which it may begin or end. False: it is no line of
// one.
bool add_quoted(std::string line, std::string& message, bool& is_open);

// $XDG_STATE_HOME/invar/NAME, else ~/.local/state/invar/NAME, its directory made; empty where there
// is no home or it cannot be written.
std::string state_file(const std::string& name);

}  // namespace invar::cli
