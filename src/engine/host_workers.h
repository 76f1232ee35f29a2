// The life of a job's process other than the first (host_job.h): it is one worker of the first
// process's models (engine/workers.h).
#pragma once

#include <string>
#include <vector>

namespace invar {

// Takes --nnodes N --node-rank R --master-addr A --master-port P out of the words of a call. This
// process becomes the first of its host's and starts the others; on another host than the first, it
// waits for them and ends. Throws UsageError.
void take_node_flags(std::vector<std::string>& words);

// Joins the job, if there is one. Whether this process is not the first.
bool join_host_job();
// Returns when the first process has come to its end. Throws Error when a step fails.
void serve_host_workers();
// The first process's last word: the others may end. Does nothing where there is no job.
void end_host_job();

}  // namespace invar
