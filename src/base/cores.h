// Which cores a process computes on.
#pragma once

namespace invar {

// Leaves the calling thread, and threads that it starts later, part `part` of so many equal parts
// of ThreadPool::usable_cores(); at least one core.
void keep_part_of_cores(int part, int parts);

}  // namespace invar
