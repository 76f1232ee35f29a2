// How many lines a journal has admitted, in a file beside it: SQLite takes a log that was cut off
// or deleted for one that never was longer, and forgets its lines without a word.
#pragma once

#include <cstdint>
#include <string>

namespace invar::server {

class LineMark {
 public:
  explicit LineMark(const std::string& path);  // opens or makes the file
  ~LineMark();
  LineMark(const LineMark&) = delete;

  int64_t lines() const { return lines_; }  // 0: nothing is known
  // Before anybody is told that line `lines` is written.
  void write(int64_t lines);

 private:
  int file_ = -1;
  int64_t lines_ = 0;
};

}  // namespace invar::server
