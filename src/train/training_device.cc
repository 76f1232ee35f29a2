#include "train/training_device.h"

#include "base/error.h"
#include "engine/devices.h"
#include "kernels/back_end.h"
#include "kernels/select.h"

namespace invar {

TrainingDevice open_training_device(const std::string& name, const std::string& instruction_set,
                                    Order order, int rank, int ranks) {
  std::shared_ptr<Device> device = open_device(name, {rank, ranks});
  if (device->is_host())
    return {std::move(device), select_kernels(order, instruction_set),
            select_training_kernels(order, instruction_set)};
  if (instruction_set != "auto")
    fail_usage("the instruction set {} was asked for and the device is {}", instruction_set, name);
  const BackEnd& gpu = gpu_back_end();
  if (order == Order::hopper) gpu.check_hopper_steps(*device);
  return {std::move(device), gpu.kernels(order), gpu.training_kernels(order), gpu.pack_outputs,
          gpu.widen};
}

}  // namespace invar
