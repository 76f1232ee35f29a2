#include "module.h"

#include "base/error.h"

namespace {

// A caller's mistake is a ValueError; anything else is a RuntimeError. Both say one sentence.
void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const invar::UsageError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const invar::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace

PYBIND11_MODULE(_invar, m) {
  m.doc() = "Invar's engine: what the Python package invar is made of.";
  pybind11::register_exception_translator(translate);
  invar::python::bind_session(m);
  invar::python::bind_operators(m);
  invar::python::bind_cuda_operators(m);
  invar::python::bind_checkpoint(m);
}
