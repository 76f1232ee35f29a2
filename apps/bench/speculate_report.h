// The report of invar bench speculate on each way to decode: rows of a table, and a page of HTML.
#pragma once

#include "base/json.h"
#include "speculate_arm.h"

namespace invar::cli {

// The highest speeds of products and of reading on this machine.
struct Limits {
  double operations = 0, bytes = 0;  // a second
  double ridge() const { return bytes > 0 ? operations / bytes : 0; }
};

struct SpeculateRow {
  std::string task;
  int batch = 1;
  std::string config;               // empty: plain
  double rate = 0, over_plain = 0;  // medians over rounds
  double cpu_over_plain = 0;        // tokens per second of CPU time; the same
  Measured total;
  double plain_step = 0;  // seconds, median
  int64_t drafter_bytes = 0;
  double adaptive_estimate = 0;  // what it expected steps to take, over what they took; 0: none
  double operations_per_byte = 0;

  double accepted_length() const;
  double acceptance() const;          // of all drafted tokens
  double right_behind_right() const;  // of those behind which all others were right: a
  double mean_draft() const;          // tokens: K
  // Both by Measured::predicted_rate.
  double predicted_over_plain(double plain_predicted) const;
  // (1 - a^(K+1)) / ((1 - a) (c K + 1)): Leviathan et al., theorem 3.8, c the cost of a drafted
  // token over a plain step. It takes verification as free.
  double paper_over_plain() const;
};

json::Value to_json(const SpeculateRow& row, double plain_predicted);
std::string heading();
std::string line_of(const SpeculateRow& row, double plain_predicted);
// Mean accepted lengths as others published them; 0 where they did not.
double published_length(std::string_view config);

// `rows`: those of a task and batch stand together, plain first.
std::string speculate_page(const std::vector<SpeculateRow>& rows, const std::string& about,
                           const Limits& limits);

}  // namespace invar::cli
