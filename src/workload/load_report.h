// What came of a load, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "workload/capacity.h"
#include "workload/load_run.h"
#include "workload/step_cost.h"

namespace invar {

struct PolicyReport {
  std::string policy;
  int budget = 0;  // rows of a step, the best of those that were tried
  struct Search {
    int budget = 0;
    Capacity capacity;
  };
  std::vector<Search> searches;  // empty where the rate was given
  LoadResult run;                // at the common rate
  LoadSummary summary;
  double predicted_seconds = 0;  // of the run's steps by the cost model; 0: there is none
};

struct LoadReport {
  LoadSpec spec;
  std::string model;    // name and identity
  std::string machine;  // what ran it and how busy it was
  std::string clock, search_clock;
  double rate = 0;  // of every run, requests per second
  std::optional<StepCost> cost;
  std::vector<PolicyReport> policies;

  const PolicyReport* find(std::string_view policy) const;
};

// One sentence about sarathi's and vllm's P99 TBT; empty where one of them is missing.
std::string compare_stalls(const LoadReport& report);
// A page of its own: tables, pictures as SVG.
std::string to_html(const LoadReport& report);
json::Value to_json(const LoadReport& report);

}  // namespace invar
