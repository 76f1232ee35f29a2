#include "borrower.h"

#include <fmt/ranges.h>

namespace invar::python {

void* Borrower::take(const py::object& object, const char* dtype,
                     std::initializer_list<int64_t> shape, const char* what) {
  const BorrowedTensor& tensor = all_.emplace_back(object, what);
  if (tensor.dtype() != dtype)
    throw py::type_error(
        fmt::format("{}: expected elements of {}, found {}", what, dtype, tensor.dtype()));
  bool fits = tensor.shape().size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = shape.begin()[i] < 0 || shape.begin()[i] == tensor.shape()[i];
  if (!fits)
    throw py::value_error(fmt::format("{}: expected the shape [{}] (-1: any), found [{}]", what,
                                      fmt::join(shape, ", "), fmt::join(tensor.shape(), ", ")));
  return tensor.data();
}

float* Borrower::floats(const py::object& object, std::initializer_list<int64_t> shape,
                        const char* what) {
  return static_cast<float*>(take(object, "F32", shape, what));
}

const int32_t* Borrower::integers(const py::object& object, std::initializer_list<int64_t> shape,
                                  const char* what) {
  return static_cast<const int32_t*>(take(object, "I32", shape, what));
}

}  // namespace invar::python
