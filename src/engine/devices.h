// The devices that options name, and which worker has which.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/peer_group.h"
#include "device/device.h"

namespace invar {

// The devices that so many workers use, of "cpu", "cuda" (all GPUs, one after the other) or
// "cuda:N"; worker i has the one of number i modulo their number. `first`: the first one of "cuda",
// going round. Throws Error when one cannot be used.
std::vector<std::shared_ptr<Device>> open_devices(const std::string& name, int workers,
                                                  int first = 0);

// A worker's turn among so many of its host, which take the devices one after the other.
struct DeviceTurn {
  int number = 0, workers = 1;
};
// The device whose turn it is, for a worker in a process of its own.
std::shared_ptr<Device> open_device(const std::string& name, DeviceTurn turn, int first = 0);
// How ranks on GPUs meet, by the name of ModelOptions::exchange. Throws UsageError for another one.
PeerOptions peer_options(const std::string& exchange);

// N of "cuda:N", 0 of "cuda".
int number_of_gpu(const std::string& name);
// How many workers have the device of this turn.
int workers_beside(const std::string& name, DeviceTurn turn);

}  // namespace invar
