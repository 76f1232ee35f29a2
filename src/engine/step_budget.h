// How many rows a step may have so that it takes no longer than a target on this device.
#pragma once

#include "base/function_ref.h"
#include "engine/executor.h"

namespace invar {

// The most rows, a multiple of 32 from 32 to `most`, whose step is expected to take at most
// `target` seconds. `seconds_of` runs a step of so many rows and says how long it took. Steps of
// twice as many rows each are run, up to the share `enough` of the target; what other rows take is
// a straight line through the last two.
int rows_within(double target, int most, FunctionRef<double(int rows)> seconds_of,
                double enough = 0.125);

// The same for the model on its device, where the rows stand behind a prompt of `slots` slots. On a
// CPU it takes about as long as the target at the most, or what a few steps of 32 rows take if that
// is more. A GPU's steps of few rows all take as long as reading the weights, so that they say
// nothing of larger ones: there it takes four times the target.
int rows_within(double target, int most, int slots, Model& model, ThreadPool* threads = nullptr);

}  // namespace invar
