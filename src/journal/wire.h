// Sampling parameters as bytes and back, for the journal and for messages between the server and
// its engine's process. Numbers are kept to the bit, also those that are not finite.
#pragma once

#include "base/bytes.h"
#include "sampling/params.h"

namespace invar::server {

void put_params(ByteWriter& out, const SamplingParams& params);
// Reads what any version wrote. Trusts nothing and throws Error.
SamplingParams get_params(ByteReader& in);

}  // namespace invar::server
