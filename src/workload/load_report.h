// The report of a load, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "workload/capacity.h"
#include "workload/cost_check.h"
#include "workload/load_run.h"
#include "workload/step_cost.h"

namespace invar {

// A bound of P99 TBT for which capacities are searched.
struct Slo {
  std::string name;
  double tbt_p99 = 0;  // seconds
};

struct PolicyReport {
  std::string policy;
  int budget = 0;  // rows of a step, the best of those that were tried for the first SLO
  struct Search {
    int budget = 0;
    size_t slo = 0;  // its number
    Capacity capacity;
    std::vector<CapacityPoint> sides;  // runs on the clock that passes, below and above it
  };
  std::vector<Search> searches;  // by SLO, then by budget; empty where the rate was given
  // The search with the highest capacity for an SLO; null without searches.
  const Search* best(size_t slo) const;
  Search* best(size_t slo);
  LoadResult run;  // at the common rate
  LoadSummary summary;
  double predicted_seconds = 0;  // of the run's steps by the cost model; 0: there is none
};

struct LoadReport {
  LoadSpec spec;
  std::string model;    // name and identity
  std::string machine;  // what ran it and how busy it was
  std::string clock, search_clock;
  double rate = 0;  // of every run, requests per second
  std::vector<Slo> slos;
  std::optional<StepCost> cost;
  CostCheck check;
  std::vector<PolicyReport> policies;

  const PolicyReport* find(std::string_view policy) const;
};

// Sentences about what a reader must know before believing a figure: a cost model that is wrong,
// runs that are saturated or too short.
std::vector<std::string> warnings_of(const LoadReport& report);
// One sentence about sarathi's and vllm's P99 TBT; empty where one of them is missing.
std::string compare_stalls(const LoadReport& report);
// A page of its own: tables, pictures as SVG.
std::string to_html(const LoadReport& report);
json::Value to_json(const LoadReport& report);

}  // namespace invar
