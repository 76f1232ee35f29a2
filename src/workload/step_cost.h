// What a step costs on this machine, measured, so that a load can be tried without computing it.
#pragma once

#include <utility>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "workload/load_clock.h"

namespace invar {

// Seconds = rows(number) + per sample + per slot that a prompt's or a decode's row sees.
struct StepCost {
  std::vector<std::pair<int, double>> rows;  // ascending numbers; straight lines in between
  double per_sample = 0, per_prompt_slot = 0, per_decode_slot = 0;

  double seconds(const StepWork& work) const;
  json::Value to_json() const;
};

// Runs steps of known work for some seconds on `clock`. Steps have up to `max_rows` rows, sequences
// up to `max_model_len` tokens. Throws Error when they do not fit into memory.
StepCost measure_step_cost(const std::shared_ptr<Model>& model, LoadClock& clock, int max_rows,
                           int max_model_len);

// A clock that every step moves by what it costs, and nothing else does.
std::unique_ptr<LoadClock> make_model_clock(const StepCost& cost);

}  // namespace invar
