// The head of a reply, before its body.
#pragma once

#include <string>

#include "http.h"

namespace invar::server {

struct HeadForm {
  bool whole = true;        // the body follows as a whole, else in pieces
  bool is_http_10 = false;  // which knows no pieces and closes unless it is told otherwise
  bool closes = false;      // the connection
};

std::string bytes_of_head(const HttpReply& reply, const Headers& more, const HeadForm& form);

}  // namespace invar::server
