// Checks SQLite's write-ahead log for damage that SQLite does not report: it takes a frame whose
// checksum is wrong for the end of the log, and forgets every line behind it without a word.
#pragma once

#include <string>

namespace invar::server {

// Reads the log as it lies there, before SQLite opens it. Empty when no committed frame is lost,
// else a sentence that says what is. A torn tail, as a killed process leaves it, is no loss: nobody
// was told of what it held.
std::string lost_frames(const std::string& log);

}  // namespace invar::server
