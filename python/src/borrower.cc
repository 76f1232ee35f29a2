#include "borrower.h"

#include <fmt/ranges.h>

namespace invar::python {

void* Borrower::elements(const py::object& object, std::string_view dtypes,
                         std::initializer_list<int64_t> shape, const char* what) {
  const BorrowedTensor& tensor =
      gpu_ < 0 ? all_.emplace_back(object, what)
               : all_.emplace_back(object, what, gpu_, BorrowedTensor::Wait::not_at_all);
  if (tensor.gpu() != gpu_)
    throw py::value_error(
        fmt::format("{}: expected a tensor of GPU {}, found one of the CPU", what, gpu_));
  if (fmt::format(",{},", dtypes).find("," + tensor.dtype() + ",") == std::string::npos)
    throw py::type_error(
        fmt::format("{}: expected elements of {}, found {}", what, dtypes, tensor.dtype()));
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
  return static_cast<float*>(elements(object, "F32", shape, what));
}

const int32_t* Borrower::integers(const py::object& object, std::initializer_list<int64_t> shape,
                                  const char* what) {
  return static_cast<const int32_t*>(elements(object, "I32", shape, what));
}

}  // namespace invar::python
