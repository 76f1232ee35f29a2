// The parts of a request as bytes and back, for the journal and for messages between the server and
// its engine's process. Readers trust nothing and throw Error.
#pragma once

#include "base/bytes.h"
#include "sampling/params.h"

namespace invar::server {

// To the bit: also numbers that are not finite.
void put_double(ByteWriter& out, double value);
double get_double(ByteReader& in);

void put_params(ByteWriter& out, const SamplingParams& params);
SamplingParams get_params(ByteReader& in);

}  // namespace invar::server
