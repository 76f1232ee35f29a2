// The runs of invar bench load: what steps cost, capacities, checks, the load itself.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "workload/load_report.h"
#include "workload/measurements.h"

namespace invar::cli {

struct BenchLoadFlags {
  ModelFlags model;
  std::string load, report, metrics, trace, cost, save_cost;
  std::string clock = "real", search_clock = "model";
  std::vector<std::string> policies, slos;
  std::vector<double> check_rates;
  double rate = 0, cost_seconds = 1, run_seconds = 0;
  int requests = 0;
  bool check_cost = true, sides = false;
};

// Runs one load under many policies on one model.
class LoadBench {
 public:
  // Refuses loads that no scheduler takes before anything runs. Opens the model when a step is
  // first computed. Throws Error and UsageError.
  LoadBench(const BenchLoadFlags& flags, LoadSpec spec);

  LoadReport run();

 private:
  // A policy with one of its budgets.
  struct Arm {
    const PolicySpec& policy;
    int budget;
  };

  struct Sized {
    int requests;
    LoadSummary summary;
  };

  EngineOptions options(const Arm& arm) const;
  const std::shared_ptr<Model>& model();
  std::string machine();
  std::unique_ptr<LoadClock> clock(const std::string& name) const;
  std::unique_ptr<LoadServer> server(const std::string& clock, const EngineOptions& o);
  int blocks(const EngineOptions& o) const;
  // The clock that passes: of the runs, or where they are the model's, of its measurement.
  std::string passing_clock();
  const PolicySpec& policy(const std::string& name) const;

  void find_cost();
  void measure_cost();
  void save_cost() const;
  std::vector<Slo> slos();
  void measure_decode_step();
  invar::LoadResult run_once(const std::string& clock_name, const Arm& arm,
                             const std::vector<invar::LoadRequest>& requests);
  LoadSummary summary_at(const std::string& clock_name, const Arm& arm, double rate, int requests);
  Sized run_by_model(const Arm& arm, double rate);
  int requests_for(const Arm& arm, double rate);
  LoadSummary run_at(const std::string& clock_name, const Arm& arm, double rate);
  void search(LoadReport& report);
  void search_again(LoadReport& report);
  void search(const PolicySpec& policy, size_t slo, LoadReport& report, PolicyReport& p);
  std::vector<double> check_rates(double capacity) const;
  CostCheck check(const Arm& arm, const std::vector<double>& rates);
  CostCheck::Point check_on_clock(const Arm& arm, double rate);
  void run_sides(const LoadReport& report, PolicyReport& p);
  void measure(const std::vector<invar::LoadRequest>& requests, PolicyReport& p);

  const BenchLoadFlags& flags_;
  LoadSpec spec_;
  ModelOptions model_options_;
  ModelConfig config_;
  std::shared_ptr<Model> model_;  // null: not opened
  double load_before_ = 0;
  ProgressLine progress_;
  Measurements measured_;
  std::optional<StepCost> cost_;  // fitted to them
  std::string search_clock_;
  double first_rate_ = 1;
  int shown_ = 0, most_requests_ = 0;
};

}  // namespace invar::cli
