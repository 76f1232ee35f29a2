#include "train/training_device.h"

#include "base/error.h"
#include "engine/devices.h"
#include "kernels/cuda/cuda_kernels.h"
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
  if (order == Order::hopper) cuda::check_hopper_steps(*device);
  return {std::move(device), cuda::kernels(order), cuda::training_kernels(order),
          cuda::pack_outputs, cuda::widen};
}

}  // namespace invar
