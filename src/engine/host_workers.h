// The life of a process of a job over sockets (host_job.h) other than the first: it is one worker
// of the first one's models (engine/workers.h).
#pragma once

#include <string>
#include <vector>

namespace invar {

// --nnodes N --node-rank R --master-addr A --master-port P among the words of a call: takes them
// away and makes this process the first of its host's, whose others it starts; where that is not
// the first host, it waits for them and ends. Throws UsageError.
void take_node_flags(std::vector<std::string>& words);

// Joins the job, if there is one. Whether this process is not the first.
bool join_host_job();
// Returns when the first process has come to its end. Throws Error when a step fails.
void serve_host_workers();
// The first process's last word: the others may end. Does nothing where there is no job.
void end_host_job();

}  // namespace invar
