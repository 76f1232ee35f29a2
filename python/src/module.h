// The parts of the module _invar.
#pragma once

#include <pybind11/pybind11.h>

namespace invar::python {

class CudaOperators;

void bind_session(pybind11::module_& m);
void bind_operators(pybind11::module_& m);
void bind_cuda_operators(pybind11::module_& m);
void bind_cuda_backward(pybind11::class_<CudaOperators>& c);
void bind_checkpoint(pybind11::module_& m);

}  // namespace invar::python
