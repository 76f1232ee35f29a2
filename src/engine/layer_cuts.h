// Where the stages of a pipeline begin. No bit depends on it.
#pragma once

#include <vector>

#include "model/decoder_spec.h"

namespace invar {

// The first layers of all stages but the first, so that the slowest stage is as fast as it can be.
// A layer costs what a step of kCostRows sequences that decode reads of its matrices: of experts,
// those that so many rows choose if they choose evenly; the last one also costs half the head,
// since of a prompt's rows hardly any have logits. Throws UsageError unless there are from 1 to as
// many stages as layers.
constexpr int kCostRows = 32;
constexpr double kHeadShare = 0.5;
std::vector<int> balanced_cuts(const DecoderSpec& spec, int stages);

}  // namespace invar
