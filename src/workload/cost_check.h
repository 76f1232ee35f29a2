// Whether loads that a cost model answers are those that the machine answers.
#pragma once

#include <string>
#include <vector>

#include "workload/load_run.h"

namespace invar {

struct CostCheck {
  struct Point {
    double rate = 0;  // requests per second
    int requests = 0;
    LoadSummary model, measured;  // of the same requests

    // Throughput, P50 scheduling delay and P99 TBT within 10 % of what was measured; of the delay a
    // step's mean duration is as good, since it says only when in a step a request came.
    bool agrees() const;
  };
  std::string policy;
  int budget = 0;
  std::vector<Point> points;  // empty: not checked

  bool agrees() const;
};

}  // namespace invar
