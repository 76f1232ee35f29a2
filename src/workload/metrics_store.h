// The measurements of a load's run as files for other programs: CSV with the names of
// Sarathi-Serve's metrics store (Agrawal et al., OSDI 2024), and plots.
#pragma once

#include <string>

#include "workload/load_run.h"

namespace invar {

// One line a request. Times in seconds; "normalized" is for a token of the prompt (names that begin
// with prefill) or of the answer.
std::string requests_csv(const LoadResult& run);
// One line a step.
std::string steps_csv(const LoadResult& run);
// The time between tokens at 1001 quantiles from 0 to 1.
std::string tbt_csv(const LoadResult& run);
// Requests that had arrived and were complete, tokens of prompts and answers that were complete, at
// every time at which one of them changed.
std::string series_csv(const LoadResult& run);
// Distributions of latencies, rows of the steps, arrivals and completions.
std::string metrics_svg(const LoadResult& run);

// All of these: requests.csv, steps.csv, tbt.csv, series.csv and plots.svg in `directory`, which is
// made where it is missing. Throws Error where a file cannot be written.
void write_metrics(const std::string& directory, const LoadResult& run);

}  // namespace invar
