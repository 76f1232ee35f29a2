// Tensors of Python in the caller's memory: whatever has __dlpack__ (numpy, torch, jax), by the ABI
// of DLPack 0.8 (dmlc/dlpack, dlpack.h), or a numpy array of bf16's bits.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace invar::python {

namespace py = pybind11;

// The tensor that a capsule named "dltensor" points to.
struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // null: rows follow each other
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* manager_context;
  void (*deleter)(DlManagedTensor*);
};

// A tensor that Python keeps alive while this lives. Made and let go of with the GIL.
class BorrowedTensor {
 public:
  // `what` names it in errors. Throws TypeError and ValueError for anything but a dense tensor of
  // the CPU, or of GPU number `gpu`, in row-major order. Waits for the work that fills it on the
  // default stream; or not, where the work that reads it goes into the caller's own stream, as with
  // torch's tensors.
  enum class Wait { on_default_stream, not_at_all };
  BorrowedTensor(const py::object& object, const std::string& what, int gpu = -1,
                 Wait wait = Wait::on_default_stream);

  const std::vector<int64_t>& shape() const { return shape_; }
  // "F32", "BF16", "F16", "I32", "I64", "U16", "BOOL".
  const std::string& dtype() const { return dtype_; }
  void* data() const { return data_; }
  // The number of the GPU that has it, or -1.
  int gpu() const { return gpu_; }
  int64_t elements() const;

 private:
  struct Release {
    void operator()(DlManagedTensor* managed) const {
      if (managed->deleter) managed->deleter(managed);
    }
  };
  void read(const DlTensor& tensor, const std::string& what);

  std::unique_ptr<DlManagedTensor, Release> managed_;
  std::vector<int64_t> shape_;
  std::string dtype_;
  void* data_ = nullptr;
  int gpu_ = -1;
};

}  // namespace invar::python
