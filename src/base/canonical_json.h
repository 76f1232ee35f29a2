// The one spelling of a JSON value (RFC 8785) that digests and signatures are made of.
#pragma once

#include "base/json.h"
#include "base/sha256.h"

namespace invar::json {

// No spaces, members in the order of their names' bytes. REQUIRES names in ASCII and no number but
// integers up to 2^53: then any JSON library can write the same bytes.
std::string canonical(const Value& value);
// SHA-256 of it.
Digest digest_of(const Value& value);

}  // namespace invar::json
