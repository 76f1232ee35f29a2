// bitsandbytes' NF4: two codes of a table to a byte, with scales that may be codes themselves.
#include "base/error.h"
#include "weights/packed_parts.h"

namespace invar {

namespace packed {

Nf4State read_nf4_state(const TensorSource& source, const RawTensors& raw,
                        const std::string& module) {
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

}  // namespace packed

using packed::ceil_div, packed::Nf4State, packed::number, packed::Raw;

void PackedMatrix::read_nf4(const TensorSource& source, const RawTensors& raw,
                            const std::string& module) {
  const Nf4State state = packed::read_nf4_state(source, raw, module);
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

}  // namespace invar
