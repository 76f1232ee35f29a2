// The requests of a load, made or recorded. The same spec and seed give the same requests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "workload/load_spec.h"

namespace invar {

struct LoadRequest {
  double arrival = 0;          // seconds after the first
  int prompt = 1, answer = 1;  // tokens
};

// `count` requests, ascending by arrival, `rate` of them per second: at another rate the same
// requests come closer together. `rate` 0 keeps the times of a trace that says when they came.
// Throws Error when the trace cannot be read or is too short.
std::vector<LoadRequest> make_requests(const LoadSpec& spec, int count, double rate);

// How many `make_requests` can make: of a trace the rows that it has.
int most_requests(const LoadSpec& spec);

// A trace's rows in the order of the file, arrivals from 0 (all 0 where it has none). `where` names
// the text in errors. Throws Error for anything but one of the two shapes.
struct TraceTable {
  std::vector<LoadRequest> rows;
  bool has_times = false;
};
TraceTable parse_trace(std::string_view csv, std::string_view where);

}  // namespace invar
