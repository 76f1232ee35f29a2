// A device in host memory that behaves as a GPU does, so that the order of a step's copies and
// kernels is tested without one: its streams keep what is put into them and do it when they are
// waited for. A result read too early is stale then, and a source overwritten too early is copied
// as what it has become. Waiting or allocating while a graph is recorded throws.
#pragma once

#include <memory>
#include <optional>

#include "device/execution.h"
#include "kernels/inference.h"

namespace invar {

// In which order the work of several streams is done.
struct DeferredOrder {
  // Without one, a stream's work is done when it is waited for. A seed does work at any time before
  // that, too, in an order drawn from those that the streams' events allow.
  std::optional<uint32_t> seed = {};
  bool waits = true;  // false, for controls: no stream waits for another's event
};

std::unique_ptr<Device> make_deferred_device(const DeferredOrder& order = {});

// The scalar kernels of an order, put into the execution's stream.
Kernels deferred_kernels(Order order);

}  // namespace invar
