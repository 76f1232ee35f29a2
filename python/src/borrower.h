// Arguments of an operator: tensors of Python as plain pointers, checked.
#pragma once

#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>

#include "dlpack.h"

namespace invar::python {

// Keeps what it borrows until it goes, with the GIL.
class Borrower {
 public:
  Borrower() = default;
  // Borrows the memory of a GPU, for work in the caller's stream.
  explicit Borrower(int gpu) : gpu_(gpu) {}

  // The elements of a float32 tensor of this shape; -1: any size.
  float* floats(const py::object& object, std::initializer_list<int64_t> shape, const char* what);
  // The same, or null for None.
  float* floats_or_null(const py::object& object, std::initializer_list<int64_t> shape,
                        const char* what) {
    return object.is_none() ? nullptr : floats(object, shape, what);
  }
  const int32_t* integers(const py::object& object, std::initializer_list<int64_t> shape,
                          const char* what);
  // Elements of one of these types, "BF16,F32" or "BOOL".
  void* elements(const py::object& object, std::string_view dtypes,
                 std::initializer_list<int64_t> shape, const char* what);
  void* elements_or_null(const py::object& object, std::string_view dtypes,
                         std::initializer_list<int64_t> shape, const char* what) {
    return object.is_none() ? nullptr : elements(object, dtypes, shape, what);
  }
  // The type of what was borrowed last, and its shape.
  const std::string& dtype() const { return all_.back().dtype(); }
  const std::vector<int64_t>& shape() const { return all_.back().shape(); }

 private:
  int gpu_ = -1;
  std::deque<BorrowedTensor> all_;
};

}  // namespace invar::python
