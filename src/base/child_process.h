// Programs that this process starts and that end with it.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <span>
#include <string>

namespace invar {

struct ChildProcess {
  std::span<const std::string> command;
  // Sockets that it gets, under their numbers. It gets no other files of this process than the
  // standard ones: else it would hold clients' connections.
  std::span<const int> sockets;
  const cpu_set_t* cores = nullptr;  // that it may run on; null: those of the calling thread
  // A process group of its own: not even one that heeds them gets what a terminal sends.
  bool own_group = false;
};

// Its id. It ignores what a terminal sends to both, ^C for one: this process decides when to end;
// and it ends when the thread that called this does. Throws Error when there is no process to be
// had; a program that cannot be run ends with 127.
pid_t start(const ChildProcess& child);

}  // namespace invar
