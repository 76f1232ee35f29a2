// The life of a process that is one worker of a model (engine/workers.h).
#pragma once

namespace invar {

// `socket`: for messages, the first of which says what model it is a worker of, in which place, and
// over which sockets it computes. Returns when the process that started this one has ended or is
// done with it. Throws Error when a message makes no sense or a step fails.
void serve_worker(int socket);

}  // namespace invar
