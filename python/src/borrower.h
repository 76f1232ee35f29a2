// Arguments of an operator: tensors of Python as plain pointers, checked.
#pragma once

#include <deque>
#include <initializer_list>
#include <string>

#include "dlpack.h"

namespace invar::python {

// Keeps what it borrows until it goes, with the GIL.
class Borrower {
 public:
  // The elements of a float32 tensor of this shape; -1: any size.
  float* floats(const py::object& object, std::initializer_list<int64_t> shape, const char* what);
  // The same, or null for None.
  float* floats_or_null(const py::object& object, std::initializer_list<int64_t> shape,
                        const char* what) {
    return object.is_none() ? nullptr : floats(object, shape, what);
  }
  const int32_t* integers(const py::object& object, std::initializer_list<int64_t> shape,
                          const char* what);
  // The shape of what was borrowed last.
  const std::vector<int64_t>& shape() const { return all_.back().shape(); }

 private:
  void* take(const py::object& object, const char* dtype, std::initializer_list<int64_t> shape,
             const char* what);

  std::deque<BorrowedTensor> all_;
};

}  // namespace invar::python
