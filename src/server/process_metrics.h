// The metrics of the process that Prometheus' clients report.
#pragma once

#include <string>

namespace invar::server {

// process_cpu_seconds_total and its like, as text; what the system does not tell is left out.
std::string process_metrics();

}  // namespace invar::server
