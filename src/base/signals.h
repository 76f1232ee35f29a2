// Signals that mean nothing to a process that serves, and whose default is to end it.
#pragma once

#include <csignal>

namespace invar {

inline constexpr int kSignalsOfOthers[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF};

// May be called between fork and exec.
inline void ignore_signals_of_others() {
  for (const int signal : kSignalsOfOthers) ::signal(signal, SIG_IGN);
}

}  // namespace invar
