// The engines of invar serve that are processes of their own: this program again.
#pragma once

#include <memory>

#include "serve_flags.h"
#include "server/backend.h"

namespace invar::cli {

// Whether replicas (--data-parallel-size) are processes.
bool has_replica_processes(const ServeFlags& flags);

// Starts them and waits until they are ready; null where the engine is this process's.
std::unique_ptr<server::Backend> make_engine_processes(const ServeFlags& flags,
                                                       const Tokenizer& tokenizer);

// This process is one of the replicas: its part of the cores and GPUs is all it sees.
void become_replica(ServeFlags& flags);

}  // namespace invar::cli
