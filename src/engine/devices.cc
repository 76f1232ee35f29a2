#include "engine/devices.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "base/number_of.h"
#include "device/cuda_device.h"

namespace invar {

namespace {

// N of "cuda:N".
int number_in(const std::string& name) {
  if (name.starts_with("cuda:"))
    if (const auto ordinal = number_of<int>(name.substr(5))) return *ordinal;
  fail_usage("expected a device of cpu, cuda or cuda:N, found \"{}\"", name);
}

}  // namespace

int number_of_gpu(const std::string& name) {
  return name == "cuda" ? 0 : number_in(name);
}

namespace {

// GPUs that so many workers use; 1 where there is none, which whoever opens it says.
int gpus_for(int workers) {
  return std::max(1, std::min(workers, cuda_device_count()));
}

// Going round.
std::shared_ptr<Device> make_gpu(int number) {
  return make_cuda_device(number % std::max(1, cuda_device_count()));
}

// Kernels of several GPUs wait for each other. The driver loads a kernel when it is first used, and
// may wait for the GPU then, unless it is told to load all at once.
void load_kernels_at_once(int workers) {
  if (workers > 1) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace

std::vector<std::shared_ptr<Device>> open_devices(const std::string& name, int workers, int first) {
  if (name == "cpu") return {make_host_device()};
  load_kernels_at_once(workers);
  if (name != "cuda") return {make_cuda_device(number_in(name))};
  std::vector<std::shared_ptr<Device>> devices;
  for (int i = 0; i < gpus_for(workers); ++i) devices.push_back(make_gpu(first + i));
  return devices;
}

std::shared_ptr<Device> open_device(const std::string& name, DeviceTurn turn, int first) {
  if (name == "cpu") return make_host_device();
  load_kernels_at_once(turn.workers);
  return name == "cuda" ? make_gpu(first + turn.number % gpus_for(turn.workers))
                        : make_cuda_device(number_in(name));
}

PeerOptions peer_options(const std::string& exchange) {
  using Way = PeerOptions::Way;
  static const std::map<std::string, Way> ways = {
      {"auto", Way::automatic}, {"host", Way::host}, {"staged", Way::staged},
      {"nccl", Way::nccl},      {"none", Way::none}, {"nccl-sum", Way::nccl_sum}};
  const auto found = ways.find(exchange);
  if (found == ways.end())
    fail_usage("expected an exchange of auto, host, staged or nccl, found \"{}\"", exchange);
  return {.way = found->second};
}

int workers_beside(const std::string& name, DeviceTurn turn) {
  if (name != "cuda") return turn.workers;
  const int gpus = gpus_for(turn.workers);
  return (turn.workers - turn.number % gpus + gpus - 1) / gpus;
}

}  // namespace invar
