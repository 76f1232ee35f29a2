// Reads what a quantization_config says of the matrices, by the formats' written rules.
#include "base/error.h"
#include "weights/packed_parts.h"

namespace invar {

namespace packed {

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

void expect(const json::Value& found, const json::Value& expected, const char* key,
            const std::string& where) {
  if (found != expected)
    fail("{}: quantization_config: {}: expected {}, found {}", where, key, json::dump(expected),
         json::excerpt(found));
}

}  // namespace packed

using packed::expect, packed::Kind, packed::size_in, packed::value_of;

namespace {

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

}  // namespace invar
