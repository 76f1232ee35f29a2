// A job of processes on any hosts that meet over sockets: those that torchrun has started, or that
// --nnodes starts on each host. The first process does what the command line says, the others are
// its workers. Every two of them prove to each other that they know INVAR_SECRET.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/secret_socket.h"
#include "engine/host_pulse.h"

namespace invar::hosts {

// Ranks and places that RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
// say, where INVAR_SECRET is there too; otherwise one process.
struct Launch {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host
  std::string address;                 // of the first process
  int port = 0;
};
const Launch& launch();
// Throws UsageError where INVAR_SECRET is one that could be guessed: who connects may try guesses
// at home.
void expect_good_secret();

// Kinds of messages between the first process and another one.
enum class Kind : uint8_t { order = 1, answer, end_model, end_job };

class Job {
 public:
  // Joins it: returns when all processes are there. Throws Error when they do not come.
  static Job& join();

  // Between the first process and another. False, or end_job, when the other end is gone.
  bool send(int process, Kind kind, std::string_view bytes);
  std::pair<Kind, std::string> receive(int process);
  bool has_ended(int process) const;  // who is the other end of `send`

  // Connections for one model, by process; null for those that are not asked for. Both ends ask for
  // each other.
  std::vector<std::shared_ptr<SecretSocket>> meet(const std::vector<int>& processes);

 private:
  struct Place {
    std::string address;
    int port = 0;
  };

  Job();
  void gather();
  void introduce();
  void give_up(int process);
  SecretSocket& control(int process) const;

  const std::string secret_;
  std::unique_ptr<SecretListener> listener_;  // of this process
  std::vector<std::unique_ptr<SecretSocket>>
      controls_;               // by process; of others than the first: one
  std::vector<Place> places_;  // by process
  std::mutex meeting_;         // guards met_
  std::vector<std::weak_ptr<SecretSocket>> met_;
  // Last: they end before what they speak of.
  std::optional<HostPulse> pulse_;
  std::optional<HostPulseWatch> watch_;
};

}  // namespace invar::hosts
