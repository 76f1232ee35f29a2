// The tensors of a module: their names, what shape they say the matrix has, whether they fit
// together.
#include <cstring>

#include "base/error.h"
#include "weights/packed_parts.h"

namespace invar {

using packed::ceil_div, packed::Kind, packed::kMaxSide, packed::Raw, packed::word;

const char* PackedMatrix::elements_name(const PackedFormat& format) {
  switch (format.kind) {
    case Kind::fp8:
    case Kind::integer:
    case Kind::nf4:
      return "weight";
    case Kind::packed:
      return "weight_packed";
    case Kind::gptq:
    case Kind::awq:
      break;
  }
  return "qweight";
}

const std::vector<const char*>& PackedMatrix::names(const PackedFormat& format) {
  static const std::vector<const char*> compressed = {
      "weight",       "weight_packed",    "weight_scale", "weight_zero_point", "weight_g_idx",
      "weight_shape", "weight_scale_inv", "input_scale",  "input_zero_point"};
  static const std::vector<const char*> fp8 = {
      "weight",           "weight_scale", "weight_zero_point",
      "weight_scale_inv", "input_scale",  "input_zero_point"};
  static const std::vector<const char*> words = {"qweight", "qzeros", "scales", "g_idx"};
  static const std::vector<const char*> nf4 = {"weight",
                                               "weight.absmax",
                                               "weight.quant_map",
                                               "weight.nested_absmax",
                                               "weight.nested_quant_map",
                                               packed::kNf4State};
  if (format.kind == Kind::nf4) return nf4;
  if (format.kind == Kind::fp8) return fp8;
  return format.kind == Kind::gptq || format.kind == Kind::awq ? words : compressed;
}

PackedMatrix::PackedMatrix(const PackedFormat& format, const TensorSource& source,
                           const RawTensors& raw, const std::string& module)
    : format_(format) {
  if (format.kind == Kind::nf4) {
    read_nf4(source, raw, module);
    return;
  }
  const bool has_words = format.kind == Kind::gptq || format.kind == Kind::awq;
  const auto read = [&](const char* name) { return raw.read_raw(module + name); };
  const char* zeros = has_words ? "qzeros" : "weight_zero_point";
  const char* order = has_words ? "g_idx" : "weight_g_idx";
  elements_ = read(elements_name(format));
  scales_ = read(format.scale);
  has_zeros_ = has_words || !format.is_symmetric;
  if (has_zeros_) zeros_ = read(zeros);
  const bool can_have_order = format.kind != Kind::awq && format.kind != Kind::fp8;
  has_order_ = can_have_order && (source.has(module + order) || (format.has_order && format.group));
  if (has_order_) order_ = read(order);
  const std::vector<int64_t> shape = shape_of(format, source, raw, module);
  rows_ = shape[0];
  columns_ = shape[1];
  check_shapes(source, module);
}

namespace {

std::vector<int64_t> shape_by(const PackedFormat& format, const Raw& elements) {
  const int64_t in_word = 32 / format.bits, first = elements.shape[0], second = elements.shape[1];
  switch (format.kind) {
    case Kind::packed:
      return {first, second * in_word};
    case Kind::gptq:
      return {second, first * in_word};
    case Kind::awq:
      return {second * in_word, first};
    case Kind::fp8:
    case Kind::integer:
    case Kind::nf4:
      break;
  }
  return {first, second};
}

// The shape that a module says it has, where it does: a row's last word may not be full.
std::vector<int64_t> said_shape(std::vector<int64_t> shape, int64_t in_word,
                                const TensorSource& source, const RawTensors& raw,
                                const std::string& name) {
  if (!source.has(name)) return shape;
  const Raw said = raw.read_raw(name);
  if ((said.dtype != "I64" && said.dtype != "I32") || said.shape != std::vector<int64_t>{2})
    fail("{}: expected I64 [2], found {} [{}]", source.where(name), said.dtype,
         fmt::join(said.shape, ", "));
  int64_t sizes[2];
  for (int i = 0; i < 2; ++i) {
    if (said.dtype == "I64")
      std::memcpy(&sizes[i], said.bytes.data() + i * 8, 8);
    else
      sizes[i] = static_cast<int32_t>(word(said, i));
  }
  if (sizes[0] != shape[0] || sizes[1] > shape[1] || sizes[1] <= shape[1] - in_word)
    fail("{}: expected {} and {} to {}, found {} and {}", source.where(name), shape[0],
         shape[1] - in_word + 1, shape[1], sizes[0], sizes[1]);
  return {sizes[0], sizes[1]};
}

// A vector may lack the size of 1, and one number any size.
bool has_shape(const Raw& raw, int64_t rows, int64_t columns) {
  const bool is_vector = raw.shape.size() < 2 && columns == 1;
  if (is_vector) return raw.shape.empty() ? rows == 1 : raw.shape[0] == rows;
  return raw.shape == std::vector<int64_t>{rows, columns};
}

}  // namespace

std::vector<int64_t> PackedMatrix::shape_of(const PackedFormat& format, const TensorSource& source,
                                            const RawTensors& raw, const std::string& module) {
  if (format.kind == Kind::nf4) {
    const packed::Nf4State state = packed::read_nf4_state(source, raw, module);
    return {state.rows, state.columns};
  }
  const std::string name = module + elements_name(format);
  const Raw elements = raw.read_raw(name, false);
  if (elements.shape.size() != 2)
    fail("{}: expected a matrix, found [{}]", source.where(name), fmt::join(elements.shape, ", "));
  std::vector<int64_t> shape = shape_by(format, elements);
  if (format.kind != Kind::packed) return shape;
  return said_shape(std::move(shape), 32 / format.bits, source, raw, module + "weight_shape");
}

void PackedMatrix::check_shapes(const TensorSource& source, const std::string& module) {
  const auto refuse = [&](const char* name, const Raw& raw, const std::string& expected) {
    fail("{}: expected {}, found {} [{}]", source.where(module + name), expected, raw.dtype,
         fmt::join(raw.shape, ", "));
  };
  const char* name = elements_name(format_);
  const bool is_word = format_.kind != Kind::fp8 && format_.kind != Kind::integer;
  const char* type = format_.kind == Kind::fp8 ? "F8_E4M3" : is_word ? "I32" : "I8";
  if (elements_.dtype != type || elements_.shape.size() != 2 || elements_.shape[0] < 1 ||
      elements_.shape[1] < 1 || elements_.shape[0] > kMaxSide || elements_.shape[1] > kMaxSide)
    refuse(name, elements_, fmt::format("a matrix of {}", type));
  groups_ = format_.group ? ceil_div(columns_, format_.group) : 1;
  const bool turned = format_.kind == Kind::gptq || format_.kind == Kind::awq;
  if (scales_.dtype != "F32" && scales_.dtype != "F16" && scales_.dtype != "BF16")
    refuse(format_.scale, scales_, "scales of F32, F16 or BF16");
  const auto expect_shape = [&](const char* name, const Raw& raw, std::string_view type,
                                int64_t rows) {
    const int64_t first = turned ? groups_ : rows, second = turned ? rows : groups_;
    if (raw.dtype != type || !has_shape(raw, first, second))
      refuse(name, raw, fmt::format("{} [{}, {}]", type, first, second));
  };
  const bool is_one = has_shape(scales_, 1, 1) && format_.group == 0 && !turned;
  const int64_t scale_rows = format_.block_rows ? ceil_div(rows_, format_.block_rows) : rows_;
  if (!is_one) expect_shape(format_.scale, scales_, scales_.dtype, scale_rows);
  check_order(source, module + (turned ? "g_idx" : "weight_g_idx"));
  if (!has_zeros_) return;
  const bool is_bytes = format_.kind == Kind::integer;
  expect_shape(turned ? "qzeros" : "weight_zero_point", zeros_, is_bytes ? "I8" : "I32",
               is_bytes ? rows_ : ceil_div(rows_, 32 / format_.bits));
}

void PackedMatrix::check_order(const TensorSource& source, const std::string& name) const {
  if (!has_order_) return;
  if (order_.dtype != "I32" || !has_shape(order_, columns_, 1))
    fail("{}: expected I32 [{}], found {} [{}]", source.where(name), columns_, order_.dtype,
         fmt::join(order_.shape, ", "));
  for (int64_t i = 0; i < columns_; ++i)
    if (word(order_, i) >= static_cast<uint32_t>(groups_))
      fail("{}: expected groups below {}, found {}", source.where(name), groups_,
           static_cast<int32_t>(word(order_, i)));
}

}  // namespace invar
