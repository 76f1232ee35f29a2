// The standard output: a disk is found full when a buffer is written, maybe the last one.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/error.h"
#include "command.h"

namespace invar::cli {

void flush_out() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return;
  fail("the standard output cannot be written: {}",
       errno ? std::strerror(errno) : "an earlier write failed");
}

void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  flush_out();
}

}  // namespace invar::cli
