// Where and in which order an operation is computed: an argument of every function of the kernel
// tables. It decides nothing about the result.
#pragma once

#include "base/thread_pool.h"
#include "device/device.h"

namespace invar {

struct Execution {
  Device* device = nullptr;
  Stream* stream = nullptr;    // of the device; kernels of a GPU are put into it
  ThreadPool* pool = nullptr;  // whose threads share the work; null where it is launched
  Part share = {};             // of the operation's work: what this call is to do

  // One share of the work of this execution.
  Execution of(Part part) const { return {device, stream, pool, part}; }
  // Threads, or 1 where work is launched.
  int team() const { return pool ? pool->size() : 1; }

  // The whole operation: every share by one of the pool's threads, or launched.
  template <typename Params>
  void run(void (*operation)(const Params&, const Execution&), const Params& params) const {
    if (!pool) return operation(params, *this);
    pool->run([&](Part part) { operation(params, of(part)); });
  }
};

// A function of a kernel table: computes one share of an operation, or puts all of it into a
// stream.
template <typename Params>
using Operation = void (*)(const Params&, const Execution&);

}  // namespace invar
