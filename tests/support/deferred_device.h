// A device in host memory that behaves as a GPU does, so that the order of a step's copies and
// kernels is tested without one: its streams keep what is put into them and do it when they are
// waited for. A result read too early is stale then, and a source overwritten too early is copied
// as what it has become. Waiting or allocating while a graph is recorded throws.
#pragma once

#include <memory>

#include "device/execution.h"
#include "kernels/inference.h"

namespace invar {

std::unique_ptr<Device> make_deferred_device();

// The scalar kernels of an order, put into the execution's stream.
Kernels deferred_kernels(Order order);

}  // namespace invar
