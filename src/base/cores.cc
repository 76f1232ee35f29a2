#include "base/cores.h"

#include <sched.h>

#include <algorithm>

#include "base/thread_pool.h"

namespace invar {

void keep_part_of_cores(int part, int parts) {
  const std::vector<int> cores = ThreadPool::usable_cores();
  const size_t count = cores.size(), share = std::max<size_t>(1, count / parts);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t i = 0; i < share; ++i) CPU_SET(cores[(part * share + i) % count], &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace invar
