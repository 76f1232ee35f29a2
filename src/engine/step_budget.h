// How many rows a step may have so that it takes no longer than a target on this device.
#pragma once

#include "base/function_ref.h"
#include "engine/model_runner.h"

namespace invar {

// The most rows, a multiple of 32 from 32 to `most`, whose step is expected to take at most
// `target` seconds. `seconds_of` runs a step of so many rows and says how long it took; steps of a
// fraction of the target are run, and what more rows take is a straight line through them.
int rows_within(double target, int most, FunctionRef<double(int rows)> seconds_of);

// The same for the model on its CPU, where the rows stand behind a prompt of `slots` slots. Takes
// about as long as the target at the most, or what a few steps of 32 rows take if that is more.
int rows_within(double target, int most, int slots, Model& model, ThreadPool* threads = nullptr);

}  // namespace invar
