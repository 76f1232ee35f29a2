// The measurements on a machine for its cost model, as a file: a later run needs neither the
// machine nor the minutes that it took.
#pragma once

#include <string>
#include <vector>

#include "workload/cost_check.h"
#include "workload/step_cost.h"

namespace invar {

struct Measurements {
  std::string model, identity;  // what was measured
  std::string machine;          // where
  int64_t slot_bytes = 0;       // of keys and values
  int plans_in_flight = 1;      // of the engine there
  // A step of so many sequences that decode behind so many tokens each.
  int decode_sequences = 0, decode_context = 0;
  double decode_seconds = 0;
  std::vector<MeasuredStep> steps;
  // Loads that were answered on the clock, to check the cost model by. Only the results that a
  // check compares are kept.
  struct Run {
    std::string load, policy;
    int budget = 0, requests = 0;
    double rate = 0;
    LoadSummary summary;
  };
  std::vector<Run> runs;

  // Every run of a load by `policy` with `budget` rows.
  std::vector<Run> runs_of(const std::string& load, const std::string& policy, int budget) const;
};

json::Value to_json(const Measurements& m);
// Throws Error naming `where`, with what was expected and found, for what to_json does not make.
Measurements parse_measurements(const json::Value& value, const std::string& where);
// Throws Error.
Measurements read_measurements(const std::string& path);
void write_measurements(const std::string& path, const Measurements& m);

}  // namespace invar
