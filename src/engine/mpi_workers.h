// The life of a process that a launcher started as one of several, other than the first: it is one
// worker of the first one's models (engine/workers.h).
#pragma once

namespace invar {

// Joins the job, if a launcher started this process as one of several. Whether it is not the first.
// Throws Error when there is no Open MPI.
bool join_mpi_job();

// Returns when the first process has come to its end. Ends the job, with a sentence, when a step
// fails.
void serve_mpi_workers();

// The first process's last word: the others may end. Does nothing where no launcher started it.
void end_mpi_job();

}  // namespace invar
