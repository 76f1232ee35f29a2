// The axes of an audit that vary the drafts.
#pragma once

#include <cstdint>

#include "audit_axes.h"

namespace invar::cli {

// Drafts of one to five levels, some of them right, with up to three others beside each.
ReplayOptions random_trees(uint32_t seed);

// `full`: more schedules.
Axis draft_trees(bool full, const Schedule& base);
// Every way to draft, and drafts that are always right, always wrong, right until the last or
// anything at random: beside each other and beside neighbours.
Axis drafters(bool full, const Schedule& base, const DecoderSpec& spec);
// "acceptance": "rejection" gives up the guarantee: sampled answers depend on the drafts.
Axis rejection(const Schedule& base);

}  // namespace invar::cli
