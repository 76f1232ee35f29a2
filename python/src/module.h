// The parts of the module _invar.
#pragma once

#include <pybind11/pybind11.h>

namespace invar::python {

void bind_session(pybind11::module_& m);
void bind_operators(pybind11::module_& m);
void bind_cuda_operators(pybind11::module_& m);
void bind_checkpoint(pybind11::module_& m);

}  // namespace invar::python
