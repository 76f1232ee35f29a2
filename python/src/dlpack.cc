#include "dlpack.h"

#include "base/error.h"

namespace invar::python {

namespace {

constexpr int32_t kCpu = 1, kCuda = 2, kPinned = 3;
constexpr int kDefaultStream = 1;  // CUDA's, as DLPack names it
constexpr int32_t kMostDimensions = 8;

std::string name_of(uint8_t code, uint8_t bits, uint16_t lanes) {
  enum : uint8_t { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kBool = 6 };
  if (lanes != 1) return {};
  if (code == kFloat && bits == 32) return "F32";
  if (code == kFloat && bits == 16) return "F16";
  if (code == kBfloat && bits == 16) return "BF16";
  if (code == kInt && bits == 32) return "I32";
  if (code == kInt && bits == 64) return "I64";
  if (code == kUnsigned && bits == 16) return "U16";
  if (code == kBool && bits == 8) return "BOOL";
  return {};
}

bool is_row_major(const DlTensor& tensor) {
  if (!tensor.strides) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

// torch's own function waits for nothing, and takes a hundredth of the time of the method.
py::object capsule_of(const py::object& object, BorrowedTensor::Wait wait) {
  if (wait == BorrowedTensor::Wait::not_at_all)
    return py::module_::import("torch.utils.dlpack").attr("to_dlpack")(object);
  const auto device = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  return device.first == kCuda ? object.attr("__dlpack__")(py::arg("stream") = kDefaultStream)
                               : object.attr("__dlpack__")();
}

}  // namespace

BorrowedTensor::BorrowedTensor(const py::object& object, const std::string& what, int gpu,
                               Wait wait)
    : gpu_(gpu) {
  if (!py::hasattr(object, "__dlpack__"))
    throw py::type_error(fmt::format("{}: expected a tensor with __dlpack__, found {}", what,
                                     std::string(py::str(py::type::of(object).attr("__name__")))));
  const py::object capsule = capsule_of(object, wait);
  void* pointer = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
  if (!pointer) throw py::error_already_set();
  managed_.reset(static_cast<DlManagedTensor*>(pointer));
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  read(managed_->tensor, what);
}

void BorrowedTensor::read(const DlTensor& tensor, const std::string& what) {
  if (tensor.device_type != kCuda || tensor.device_id != gpu_) gpu_ = -1;
  if (gpu_ < 0 && tensor.device_type != kCpu && tensor.device_type != kPinned)
    throw py::value_error(
        fmt::format("{}: expected a tensor of the CPU, found one of the DLPack "
                    "device {}: give its .cpu()",
                    what, tensor.device_type));
  dtype_ = name_of(tensor.code, tensor.bits, tensor.lanes);
  if (dtype_.empty())
    throw py::type_error(
        fmt::format("{}: expected elements of float32, bfloat16, float16, int32, "
                    "int64, uint16 or bool, found the DLPack type {} of {} bits",
                    what, tensor.code, tensor.bits));
  if (tensor.ndim < 0 || tensor.ndim > kMostDimensions)
    throw py::value_error(fmt::format("{}: expected at most {} dimensions, found {}", what,
                                      kMostDimensions, tensor.ndim));
  if (!is_row_major(tensor))
    throw py::value_error(
        fmt::format("{}: expected rows that follow each other: give its contiguous form", what));
  shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

int64_t BorrowedTensor::elements() const {
  int64_t all = 1;
  for (const int64_t size : shape_) all *= size;
  return all;
}

}  // namespace invar::python
