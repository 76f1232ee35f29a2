#include "weights/packed_formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace invar {

namespace {

using Kind = PackedFormat::Kind;
using Raw = RawTensor;
constexpr int64_t kMaxSide = 1 << 24;
constexpr int64_t kInHand = 256;  // elements of a row

// ---- The configuration

// The value of a key, or what it stands for where it is absent or null.
json::Value value_of(const json::Value& object, const char* key, json::Value fallback) {
  const json::Value* found = object.find(key);
  return found && !found->is_null() ? *found : std::move(fallback);
}

int64_t size_in(const json::Value& value, const char* key, const std::string& where) {
  const auto size = value.to_integer();
  if (!size || *size < 1 || *size > kMaxSide)
    fail("{}: quantization_config: {}: expected 1 to {}, found {}", where, key, kMaxSide,
         json::excerpt(value));
  return *size;
}

// -1: all of a row.
int64_t group_of(const json::Value& value, const std::string& where) {
  return value == json::Value(-1) ? 0 : size_in(value, "group_size", where);
}

void read_blocks(const json::Value& blocks, PackedFormat& format, const std::string& where) {
  if (!blocks.is_array() || blocks.as_array().size() != 2)
    fail("{}: quantization_config: expected blocks of two sizes, found {}", where,
         json::excerpt(blocks));
  format.block_rows = size_in(blocks.as_array()[0], "rows of a block", where);
  format.group = size_in(blocks.as_array()[1], "columns of a block", where);
}

int bits_in(const json::Value& value, const std::string& where) {
  if (value != json::Value(4) && value != json::Value(8))
    fail("{}: quantization_config: expected 4 or 8 bits, found {}", where, json::excerpt(value));
  return static_cast<int>(value.as_integer());
}

void expect(const json::Value& found, const json::Value& expected, const char* key,
            const std::string& where) {
  if (found != expected)
    fail("{}: quantization_config: {}: expected {}, found {}", where, key, json::dump(expected),
         json::excerpt(found));
}

PackedFormat fp8_format(const json::Value& q, const std::string& where) {
  PackedFormat format;
  expect(value_of(q, "fmt", "e4m3"), "e4m3", "fmt", where);
  if (const json::Value blocks = value_of(q, "weight_block_size", {}); !blocks.is_null()) {
    read_blocks(blocks, format, where);
    format.scale = "weight_scale_inv";
  }
  return format;
}

PackedFormat gptq_format(const json::Value& q, const std::string& where) {
  PackedFormat format{.kind = Kind::gptq, .scale = "scales"};
  const json::Value layout = value_of(q, "checkpoint_format", value_of(q, "format", "gptq"));
  if (layout != json::Value("gptq") && layout != json::Value("gptq_v2"))
    fail("{}: quantization_config: checkpoint_format: expected gptq or gptq_v2, found {}", where,
         json::excerpt(layout));
  format.bits = bits_in(value_of(q, "bits", 4), where);
  format.group = group_of(value_of(q, "group_size", 128), where);
  format.is_symmetric = value_of(q, "sym", true) == json::Value(true);
  format.is_zero_exact = layout == json::Value("gptq_v2");
  format.has_order = value_of(q, "desc_act", false) == json::Value(true);
  expect(value_of(q, "dynamic", json::Object{}), json::Object{}, "dynamic", where);
  return format;
}

PackedFormat awq_format(const json::Value& q, const std::string& where) {
  PackedFormat format{.kind = Kind::awq, .bits = 4, .is_symmetric = false, .scale = "scales"};
  const json::Value version = value_of(q, "version", "gemm");
  if (version != json::Value("GEMM")) expect(version, "gemm", "version", where);
  expect(value_of(q, "bits", 4), 4, "bits", where);
  expect(value_of(q, "zero_point", true), true, "zero_point", where);
  format.group = group_of(value_of(q, "group_size", 128), where);
  return format;
}

PackedFormat nf4_format(const json::Value& q, const std::string& where) {
  expect(value_of(q, "load_in_4bit", false), true, "load_in_4bit", where);
  expect(value_of(q, "bnb_4bit_quant_type", "fp4"), "nf4", "bnb_4bit_quant_type", where);
  expect(value_of(q, "bnb_4bit_quant_storage", "uint8"), "uint8", "bnb_4bit_quant_storage", where);
  return {.kind = Kind::nf4, .bits = 4, .scale = "weight.absmax"};
}

// The one group of modules that compressed-tensors' files usually have.
const json::Value& weights_of(const json::Value& q, const std::string& where) {
  const json::Value* groups = q.find("config_groups");
  if (!groups || !groups->is_object() || groups->as_object().size() != 1)
    fail("{}: quantization_config: expected config_groups of one group, found {}", where,
         groups ? json::excerpt(*groups) : "nothing");
  const json::Value* weights = groups->as_object()[0].second.find("weights");
  if (!weights || !weights->is_object())
    fail("{}: quantization_config: expected weights in the group, found none", where);
  return *weights;
}

PackedFormat compressed_format(const json::Value& q, const std::string& where) {
  const json::Value& weights = weights_of(q, where);
  const json::Value layout = value_of(q, "format", "nothing");
  PackedFormat format;
  if (layout == json::Value("pack-quantized"))
    format.kind = Kind::packed;
  else if (layout == json::Value("int-quantized") || layout == json::Value("naive-quantized"))
    format.kind = Kind::integer;
  else if (layout != json::Value("float-quantized"))
    fail(
        "{}: quantization_config: format: expected int-quantized, pack-quantized or "
        "float-quantized, found {}",
        where, json::excerpt(layout));
  expect(value_of(q, "kv_cache_scheme", {}), {}, "kv_cache_scheme", where);
  expect(value_of(weights, "type", "int"), format.kind == Kind::fp8 ? "float" : "int", "type",
         where);
  format.bits = bits_in(value_of(weights, "num_bits", 8), where);
  if (format.kind != Kind::packed) expect(format.bits, 8, "num_bits", where);
  format.is_symmetric = value_of(weights, "symmetric", true) == json::Value(true);
  const json::Value order = value_of(weights, "actorder", false);
  format.has_order = order == json::Value("group") || order == json::Value(true);
  const json::Value strategy = value_of(weights, "strategy", "channel");
  if (strategy == json::Value("group"))
    format.group = group_of(value_of(weights, "group_size", {}), where);
  else if (strategy == json::Value("block"))
    read_blocks(value_of(weights, "block_structure", {}), format, where);
  else if (strategy != json::Value("channel") && strategy != json::Value("tensor"))
    fail("{}: quantization_config: strategy: expected tensor, channel, group or block, found {}",
         where, json::excerpt(strategy));
  return format;
}

// ---- The tensors

int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

uint32_t word(const Raw& raw, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, raw.bytes.data() + i * 4, 4);
  return bits;
}

float number(const Raw& raw, int64_t i) {
  if (raw.dtype == "F32") return std::bit_cast<float>(word(raw, i));
  uint16_t bits = 0;
  std::memcpy(&bits, raw.bytes.data() + i * 2, 2);
  return raw.dtype == "F16" ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// 4 bits of exponent, bias 7, and 3 of significand; 0x7f and 0xff are NaN, nothing is infinite.
float e4m3(uint8_t byte) {
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80) << 24;
  const uint32_t exponent = byte >> 3 & 15, significand = byte & 7;
  if ((byte & 0x7f) == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 120) << 23 | significand << 20);
  const float value = static_cast<float>(significand) * 0x1p-9f;
  return sign ? -value : value;
}

float of_e4m3(std::byte byte) {
  static const std::array<float, 256> numbers = [] {
    std::array<float, 256> all;
    for (int i = 0; i < 256; ++i) all[static_cast<size_t>(i)] = e4m3(static_cast<uint8_t>(i));
    return all;
  }();
  return numbers[static_cast<size_t>(byte)];
}

// What bitsandbytes says of a module, as JSON in a tensor of bytes.
constexpr const char* kNf4State = "weight.quant_state.bitsandbytes__nf4";
struct Nf4State {
  int64_t rows, columns;
  int64_t block, nested_block;  // 0: the scales are f32
  float offset;                 // of scales that are codes themselves
};

Nf4State read_state(const TensorSource& source, const RawTensors& raw, const std::string& module) {
  const std::string where = source.where(module + kNf4State);
  const Raw bytes = raw.read_raw(module + kNf4State);
  const json::Value state =
      json::parse({reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size()}, where);
  if (!state.is_object()) fail("{}: expected an object, found {}", where, json::excerpt(state));
  const json::Value shape = value_of(state, "shape", nullptr);
  if (!shape.is_array() || shape.as_array().size() != 2)
    fail("{}: expected a shape of two sizes, found {}", where, json::excerpt(shape));
  expect(value_of(state, "quant_type", "nothing"), "nf4", "quant_type", where);
  Nf4State found{.rows = size_in(shape.as_array()[0], "shape", where),
                 .columns = size_in(shape.as_array()[1], "shape", where),
                 .block = size_in(value_of(state, "blocksize", 0), "blocksize", where),
                 .nested_block = 0,
                 .offset = 0};
  if (!state.find("nested_blocksize")) return found;
  found.nested_block = size_in(value_of(state, "nested_blocksize", 0), "nested_blocksize", where);
  const json::Value offset = value_of(state, "nested_offset", 0);
  if (!offset.is_number())
    fail("{}: nested_offset: expected a number, found {}", where, json::excerpt(offset));
  found.offset = static_cast<float>(offset.as_number());
  return found;
}

// Which output a nibble of an AWQ word belongs to, and back.
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

PackedFormat read_packed_format(const json::Value& quantization, const std::string& where) {
  const json::Value method = value_of(quantization, "quant_method", "nothing");
  if (method == json::Value("fp8")) return fp8_format(quantization, where);
  if (method == json::Value("gptq")) return gptq_format(quantization, where);
  if (method == json::Value("awq")) return awq_format(quantization, where);
  if (method == json::Value("compressed-tensors")) return compressed_format(quantization, where);
  if (method == json::Value("bitsandbytes")) return nf4_format(quantization, where);
  fail(
      "{}: quantization_config: quant_method: expected compressed-tensors, gptq, awq, fp8 or "
      "bitsandbytes, found {}",
      where, json::excerpt(method));
}

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
                                               kNf4State};
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

// What a module says of its own shape, where it does: a row's last word may not be full.
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

// Of a vector also without the size of 1, of one number without any.
bool has_shape(const Raw& raw, int64_t rows, int64_t columns) {
  const bool is_vector = raw.shape.size() < 2 && columns == 1;
  if (is_vector) return raw.shape.empty() ? rows == 1 : raw.shape[0] == rows;
  return raw.shape == std::vector<int64_t>{rows, columns};
}

}  // namespace

std::vector<int64_t> PackedMatrix::shape_of(const PackedFormat& format, const TensorSource& source,
                                            const RawTensors& raw, const std::string& module) {
  if (format.kind == Kind::nf4) {
    const Nf4State state = read_state(source, raw, module);
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

void PackedMatrix::read_nf4(const TensorSource& source, const RawTensors& raw,
                            const std::string& module) {
  const Nf4State state = read_state(source, raw, module);
  rows_ = state.rows;
  columns_ = state.columns;
  block_ = state.block;
  const int64_t elements = rows_ * columns_, blocks = ceil_div(elements, block_);
  const auto read = [&](const char* name, const char* type, int64_t bytes) {
    Raw found = raw.read_raw(module + name);
    if (found.dtype != type || std::ssize(found.bytes) != bytes)
      fail("{}: expected {} bytes of {}, found {} of {}", source.where(module + name), bytes, type,
           found.bytes.size(), found.dtype);
    return found;
  };
  const auto floats = [&](const char* name, int64_t count) {
    const Raw found = read(name, "F32", count * 4);
    std::vector<float> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(number(found, i));
    return all;
  };
  elements_ = read("weight", "U8", ceil_div(elements, 2));
  table_ = floats("weight.quant_map", 16);
  if (state.nested_block == 0) {
    factors_ = floats("weight.absmax", blocks);
    return;
  }
  const Raw codes = read("weight.absmax", "U8", blocks);
  const auto table = floats("weight.nested_quant_map", 256);
  const auto factors = floats("weight.nested_absmax", ceil_div(blocks, state.nested_block));
  for (int64_t i = 0; i < blocks; ++i) {
    const float product = table[static_cast<size_t>(codes.bytes[static_cast<size_t>(i)])] *
                          factors[static_cast<size_t>(i / state.nested_block)];
    factors_.push_back(product + state.offset);
  }
}

// The first of two elements is in the upper half of their byte.
void PackedMatrix::nf4_row(int64_t row, int64_t first, int64_t count, float* out) const {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = row * columns_ + first + i;
    const auto byte = static_cast<uint8_t>(elements_.bytes[static_cast<size_t>(at / 2)]);
    const int code = at % 2 == 0 ? byte >> 4 : byte & 15;
    out[i] = table_[static_cast<size_t>(code)] * factors_[static_cast<size_t>(at / block_)];
  }
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

int PackedMatrix::element(int64_t row, int64_t column) const {
  const int in_word = 32 / format_.bits;
  const uint32_t mask = (1u << format_.bits) - 1;
  switch (format_.kind) {
    case Kind::packed: {
      const uint32_t w = word(elements_, row * ceil_div(columns_, in_word) + column / in_word);
      return static_cast<int>(w >> column % in_word * format_.bits & mask);
    }
    case Kind::gptq: {
      const uint32_t w = word(elements_, column / in_word * rows_ + row);
      return static_cast<int>(w >> column % in_word * format_.bits & mask);
    }
    case Kind::awq: {
      const uint32_t w = word(elements_, column * (rows_ / 8) + row / 8);
      return static_cast<int>(w >> 4 * kAwqPlace[row % 8] & mask);
    }
    case Kind::integer:
      return static_cast<int8_t>(elements_.bytes[static_cast<size_t>(row * columns_ + column)]);
    case Kind::fp8:
    case Kind::nf4:
      break;
  }
  return 0;
}

void PackedMatrix::elements(int64_t row, int64_t column, int64_t count, int* out) const {
  const bool turned = format_.kind == Kind::gptq;
  const int in_word = 32 / format_.bits;
  int64_t i = 0;
  if (turned || format_.kind == Kind::packed) {
    const uint32_t mask = (1u << format_.bits) - 1;
    for (; i < count && (column + i) % in_word; ++i) out[i] = element(row, column + i);
    const int64_t place = (column + i) / in_word, step = turned ? rows_ : 1;
    int64_t at = turned ? place * rows_ + row : row * ceil_div(columns_, in_word) + place;
    for (; i + in_word <= count; i += in_word, at += step) {
      uint32_t w = word(elements_, at);
      for (int j = 0; j < in_word; ++j, w >>= format_.bits) out[i + j] = static_cast<int>(w & mask);
    }
  }
  for (; i < count; ++i) out[i] = element(row, column + i);
}

int PackedMatrix::stored_zero(int64_t row, int64_t group) const {
  const int in_word = 32 / format_.bits;
  const uint32_t mask = (1u << format_.bits) - 1;
  if (format_.kind == Kind::awq)
    return static_cast<int>(word(zeros_, group * (rows_ / 8) + row / 8) >> 4 * kAwqPlace[row % 8] &
                            mask);
  if (format_.kind == Kind::gptq)
    return static_cast<int>(word(zeros_, group * ceil_div(rows_, in_word) + row / in_word) >>
                                row % in_word * format_.bits &
                            mask);
  return static_cast<int>(
      word(zeros_, row / in_word * groups_ + group) >> row % in_word * format_.bits & mask);
}

// Of the integers as they stand in the words.
int PackedMatrix::zero(int64_t row, int64_t group) const {
  const int middle = 1 << (format_.bits - 1);
  switch (format_.kind) {
    case Kind::fp8:
    case Kind::nf4:
      return 0;
    case Kind::integer:
      return has_zeros_
                 ? static_cast<int8_t>(zeros_.bytes[static_cast<size_t>(row * groups_ + group)])
                 : 0;
    case Kind::packed:  // zero points stand in words as elements do, with the middle added to both
      return has_zeros_ ? stored_zero(row, group) : middle;
    case Kind::gptq:
      // Where it is symmetric files of the older form have middle - 1, but some have middle.
      return format_.is_symmetric ? middle
                                  : stored_zero(row, group) + (format_.is_zero_exact ? 0 : 1);
    case Kind::awq:
      break;
  }
  return stored_zero(row, group);
}

int64_t PackedMatrix::group_of(int64_t column) const {
  if (has_order_ && groups_ > 1) return word(order_, column);
  return format_.group ? column / format_.group : 0;
}

float PackedMatrix::scale(int64_t row, int64_t group) const {
  const bool turned = format_.kind == Kind::gptq || format_.kind == Kind::awq;
  if (turned) return number(scales_, group * rows_ + row);
  const int64_t scale_row = format_.block_rows ? row / format_.block_rows : row;
  const bool is_one = std::ssize(scales_.bytes) == (scales_.dtype == "F32" ? 4 : 2);
  return number(scales_, is_one ? 0 : scale_row * groups_ + group);
}

int64_t PackedMatrix::columns_together(int64_t column, int64_t most) const {
  if (!has_order_ || groups_ == 1)
    return format_.group ? std::min(format_.group - column % format_.group, most) : most;
  int64_t count = 1;
  while (count < most && group_of(column + count) == group_of(column)) ++count;
  return count;
}

void PackedMatrix::row(int64_t row, int64_t first, int64_t count, float* out) const {
  if (format_.kind == Kind::nf4) return nf4_row(row, first, count, out);
  int q[kInHand];
  for (int64_t i = 0; i < count;) {
    const int64_t column = first + i, group = group_of(column);
    const int64_t n = columns_together(column, std::min(count - i, kInHand));
    const float factor = scale(row, group);
    if (format_.kind == Kind::fp8) {
      const std::byte* bytes = elements_.bytes.data() + row * columns_ + column;
      for (int64_t k = 0; k < n; ++k) out[i + k] = of_e4m3(bytes[k]) * factor;
    } else {
      const int less = zero(row, group);
      elements(row, column, n, q);
      for (int64_t k = 0; k < n; ++k) out[i + k] = static_cast<float>(q[k] - less) * factor;
    }
    i += n;
  }
}

bool PackedMatrix::has_fp8_blocks(const PackedFormat& format, int64_t columns) {
  const int64_t block = storage_of(DType::e4m3).block;
  return format.kind == Kind::fp8 && format.group % block == 0 && columns % block == 0;
}

namespace {

// Whether every column has its place's group.
bool is_in_order(const Raw& order, int64_t group) {
  if (order.dtype != "I32") return false;
  for (int64_t i = 0; i < std::ssize(order.bytes) / 4; ++i)
    if (word(order, i) != static_cast<uint32_t>(group ? i / group : 0)) return false;
  return true;
}

bool are_f16(const Raw& scales) {
  const int64_t count = std::ssize(scales.bytes) / (scales.dtype == "F32" ? 4 : 2);
  for (int64_t i = 0; i < count; ++i)
    if (const float s = number(scales, i); f16_to_f32(f32_to_f16(s)) != s) return false;
  return true;
}

}  // namespace

DType PackedMatrix::block_type(const PackedFormat& format, const TensorSource& source,
                               const RawTensors& raw, const std::string& module, int64_t columns) {
  const bool is_integer = format.kind != Kind::fp8 && format.kind != Kind::nf4;
  const DType type = format.bits == 8      ? DType::q8_0
                     : format.is_symmetric ? DType::q4_0
                                           : DType::q5_0;
  const int64_t block = storage_of(type).block;
  if (!is_integer || (type == DType::q8_0 && !format.is_symmetric) || columns % block ||
      format.group % block)
    return DType::bf16;
  const std::string order = module + (format.kind == Kind::gptq ? "g_idx" : "weight_g_idx");
  if (source.has(order) ? !is_in_order(raw.read_raw(order), format.group) : format.has_order)
    return DType::bf16;
  const Raw scales = raw.read_raw(module + format.scale, false);
  if (scales.dtype == "F16") return type;
  const bool is_float = scales.dtype == "BF16" || scales.dtype == "F32";
  return is_float && are_f16(raw.read_raw(module + format.scale)) ? type : DType::bf16;
}

void PackedMatrix::blocks(DType type, int64_t row, int64_t first, int64_t count,
                          uint8_t* out) const {
  const StorageType& storage = storage_of(type);
  for (int64_t b = first; b < first + count; ++b, out += storage.bytes())
    type == DType::e4m3 ? fp8_block(row, b * storage.block, out)
                        : integer_block(type, row, b * storage.block, out);
}

void PackedMatrix::fp8_block(int64_t row, int64_t column, uint8_t* out) const {
  const StorageType& storage = storage_of(DType::e4m3);
  const float factor = scale(row, group_of(column));
  std::memcpy(out, &factor, sizeof factor);
  const auto* values =
      reinterpret_cast<const uint8_t*>(elements_.bytes.data()) + row * columns_ + column;
  for (int i = 0; i < storage.block; ++i)
    if ((values[i] & 0x7f) == 0x7f)
      fail("expected finite weights, found NaN in row {}, column {}", row, column + i);
  std::memcpy(out + storage.scale_bytes, values, static_cast<size_t>(storage.block));
}

// ggml's: an f16 scale; of q5_0 a fifth bit of each element; a byte for each of 32 elements, or for
// the first and the last 16 one. What is stored is above zero but for q8_0.
void PackedMatrix::integer_block(DType type, int64_t row, int64_t column, uint8_t* out) const {
  const int64_t group = group_of(column);
  const uint16_t factor = f32_to_f16(scale(row, group));
  std::memcpy(out, &factor, sizeof factor);
  const int least = type == DType::q8_0 ? 0 : type == DType::q4_0 ? -8 : -16;
  const int less = zero(row, group) + least;
  uint8_t* values = out + sizeof factor + storage_of(type).lead;
  int q[32];
  elements(row, column, 32, q);
  uint32_t fifth = 0;
  for (int i = 0; i < 32; ++i) {
    const int value = q[i] - less;
    fifth |= static_cast<uint32_t>(value >> 4 & 1) << i;
    if (type == DType::q8_0)
      values[i] = static_cast<uint8_t>(value);
    else if (i < 16)
      values[i] = static_cast<uint8_t>(value & 15);
    else
      values[i - 16] |= static_cast<uint8_t>((value & 15) << 4);
  }
  if (type == DType::q5_0) std::memcpy(out + sizeof factor, &fifth, sizeof fifth);
}

}  // namespace invar
