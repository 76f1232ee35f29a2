// Open MPI, opened at run time: its functions by the binary interface of version 4, which its 4.x
// releases keep. The build needs nothing of it (docs/decisions/0012).
#pragma once

#include <cstddef>
#include <string>

namespace invar::mpi {

// Ranks and places that mpirun, or srun --mpi=pmix, says in the environment; one process where
// there is neither.
struct Launch {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host
};
Launch launch();

// The subject of a message: messages of one pair and tag keep their order.
enum class Tag { order = 1, answer, end_model, end_job, group, stage };

struct Incoming {
  Tag tag;
  size_t bytes;
};

// The job that this process is a rank of. One thread at a time may call it. A rank that dies ends
// the whole job: the launcher ends the others, and says which rank it was, and where.
class Job {
 public:
  // Joins it: the first call is at the beginning of the process. Throws Error when there is no
  // library of this version.
  static Job& join();

  int rank() const { return rank_; }
  int size() const { return size_; }

  void send(int to, Tag tag, const void* data, size_t bytes);
  // Waits for so many bytes. It looks for a while, then naps between looks.
  void receive(int from, Tag tag, void* data, size_t bytes);
  // Waits for any message of a rank, and says which it is.
  Incoming wait_for_any(int from);
  // The job's end, for every rank of it; this one has said why.
  [[noreturn]] void abort();
  // Its last call: waits for the others to come here as well.
  void finish();

  struct Functions;

 private:
  Job();
  Functions* const mpi_;
  int rank_ = 0, size_ = 1;
};

}  // namespace invar::mpi
