#include "kernels/reference/reference.h"
#include "kernels/select.h"

namespace invar {

BackwardKernels select_backward_kernels(Order order, std::string_view instruction_set) {
  const char* name = select_kernels(order, instruction_set).name;  // refuses unknown ones
  BackwardKernels kernels = reference::backward_table(order);
  kernels.name = name;
  return kernels;
}

}  // namespace invar
