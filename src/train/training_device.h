// The device that a trainer computes on.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "kernels/training.h"

namespace invar {

struct TrainingDevice {
  std::shared_ptr<Device> device;
  Kernels kernels;
  TrainingKernels training;
  // On a GPU: how a step's weights become the forward's where they are; null on a CPU.
  Operation<PackOutputsParams> pack_outputs = nullptr;
  Operation<WidenParams> widen = nullptr;
};

// `name`: cpu, cuda or cuda:N; the instruction set is a CPU's. The order is portable or hopper.
// Several ranks have GPUs in turn, each one of its own as far as there are. Throws UsageError and
// Error.
TrainingDevice open_training_device(const std::string& name, const std::string& instruction_set,
                                    Order order, int rank, int ranks);

}  // namespace invar
