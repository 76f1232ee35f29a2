#include "weights/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"

namespace invar {

namespace {

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::f32},
    {1, "F16", DType::f16},
    {2, "Q4_0", DType::q4_0, 2},
    {3, "Q4_1", DType::q4_1, 4},
    {6, "Q5_0", DType::q5_0, 2},
    {7, "Q5_1", DType::q5_1, 4},
    {8, "Q8_0", DType::q8_0, 2},
    {9, "Q8_1", {}},
    {10, "Q2_K", DType::q2_k, 16},
    {11, "Q3_K", DType::q3_k, 0},
    {12, "Q4_K", DType::q4_k, 16},
    {13, "Q5_K", DType::q5_k, 16},
    {14, "Q6_K", DType::q6_k, 0},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", DType::iq4_nl, 2},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::bf16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", DType::mxfp4, 1, 1},
    {40, "NVFP4", {}},
};

std::string supported_types() {
  std::string names;
  for (const GgmlType& type : kGgmlTypes)
    if (type.type) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

// The types of values in metadata.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
  kValueTypes
};

// Goes through the header from its beginning.
class Cursor {
 public:
  Cursor(ReadBytes read, int64_t size, std::string_view where)
      : read_(read), size_(size), where_(where) {}

  template <typename T>
  T take(std::string_view what) {
    T value;
    std::memcpy(&value, bytes(sizeof(T), what), sizeof(T));
    return value;
  }

  std::string text(int64_t most, std::string_view what) {
    const uint64_t length = take<uint64_t>(what);
    if (length > static_cast<uint64_t>(most))
      fail("{}: expected {} of at most {} bytes, found {} at byte {}", where_, what, most, length,
           at_ - 8);
    std::string result(length, '\0');
    for (size_t done = 0; done < length;) {
      const size_t n = std::min<size_t>(length - done, kWindow);
      std::memcpy(result.data() + done, bytes(static_cast<int64_t>(n), what), n);
      done += n;
    }
    return result;
  }

  int64_t count(int64_t most, std::string_view what) {
    const uint64_t value = take<uint64_t>(what);
    if (value > static_cast<uint64_t>(most))
      fail("{}: expected at most {} {}, found {} at byte {}", where_, most, what, value, at_ - 8);
    return static_cast<int64_t>(value);
  }

  int64_t at() const { return at_; }
  int64_t left() const { return size_ - at_; }
  std::string_view where() const { return where_; }

  int64_t elements_left = kMaxGgufElements;

 private:
  static constexpr int64_t kWindow = 1 << 16;

  // The next bytes, at most a window of them.
  const std::byte* bytes(int64_t count, std::string_view what) {
    if (count > size_ - at_)
      fail("{}: the file is cut short: expected {} bytes of {} at byte {}, found {}", where_, count,
           what, at_, size_ - at_);
    if (at_ + count > kMaxGgufHeader)
      fail("{}: expected a header of at most {} bytes, found more", where_, kMaxGgufHeader);
    if (at_ < begin_ || at_ + count > begin_ + std::ssize(window_)) {
      window_.resize(static_cast<size_t>(std::min(2 * kWindow, size_ - at_)));
      read_(at_, window_);
      begin_ = at_;
    }
    const std::byte* found = window_.data() + (at_ - begin_);
    at_ += count;
    return found;
  }

  ReadBytes read_;
  int64_t size_;
  std::string_view where_;
  std::vector<std::byte> window_;
  int64_t begin_ = 0, at_ = 0;
};

json::Value read_number(Cursor& in, uint32_t type, std::string_view key) {
  switch (type) {
    case kU8:
      return static_cast<int64_t>(in.take<uint8_t>(key));
    case kI8:
      return static_cast<int64_t>(in.take<int8_t>(key));
    case kU16:
      return static_cast<int64_t>(in.take<uint16_t>(key));
    case kI16:
      return static_cast<int64_t>(in.take<int16_t>(key));
    case kU32:
      return static_cast<int64_t>(in.take<uint32_t>(key));
    case kI32:
      return static_cast<int64_t>(in.take<int32_t>(key));
    case kF32:
      return static_cast<double>(in.take<float>(key));
    case kU64:
      return in.take<uint64_t>(key);
    case kI64:
      return in.take<int64_t>(key);
    case kF64:
      return in.take<double>(key);
    default:
      break;
  }
  const uint8_t flag = in.take<uint8_t>(key);
  if (flag > 1)
    fail("{}: {}: expected 0 or 1 as a boolean, found {}", in.where(), json::quoted(key), flag);
  return flag == 1;
}

json::Value read_value(Cursor& in, std::string_view key) {
  const uint32_t type = in.take<uint32_t>(key);
  if (type >= kValueTypes)
    fail("{}: {}: expected a value's type from 0 to {}, found {}", in.where(), json::quoted(key),
         kValueTypes - 1, type);
  if (type == kText) return in.text(kMaxGgufText, key);
  if (type != kArray) return read_number(in, type, key);
  const uint32_t of = in.take<uint32_t>(key);
  if (of >= kValueTypes || of == kArray)
    fail("{}: {}: expected an array of numbers or texts, found the type {}", in.where(),
         json::quoted(key), of);
  const int64_t count = in.count(in.elements_left, "elements of arrays (in all the file's)");
  in.elements_left -= count;
  json::Array list;
  list.reserve(static_cast<size_t>(std::min(count, in.left())));  // a byte at least is one's own
  for (int64_t i = 0; i < count; ++i)
    list.push_back(of == kText ? json::Value(in.text(kMaxGgufText, key))
                               : read_number(in, of, key));
  return list;
}

void check_begin(Cursor& in) {
  const auto magic = in.take<uint32_t>("the magic number");
  if (magic != 0x46554747)  // GGUF
    fail("{}: expected a GGUF file, found one that begins with {:02x} {:02x} {:02x} {:02x}",
         in.where(), magic & 255, magic >> 8 & 255, magic >> 16 & 255, magic >> 24);
  const auto version = in.take<uint32_t>("the version");
  if ((version & 0xffff) == 0)
    fail("{}: the file is big-endian, which is not supported", in.where());
  if (version != 2 && version != 3)
    fail("{}: expected version 2 or 3 of GGUF, found {}", in.where(), version);
}

// Alignment of the tensors' bytes.
int64_t alignment_of(const GgufHeader& header, std::string_view where) {
  const auto found = header.metadata.find("general.alignment");
  if (found == header.metadata.end()) return 32;
  const auto value = found->second.to_integer();
  if (!value || *value < 1 || *value > 1 << 20 || !std::has_single_bit(uint64_t(*value)))
    fail("{}: general.alignment: expected a power of two up to {}, found {}", where, 1 << 20,
         json::excerpt(found->second));
  return *value;
}

// Its bytes count from where those of all tensors begin.
GgufTensor read_tensor(Cursor& in) {
  GgufTensor tensor;
  tensor.name = in.text(kMaxGgufName - 1, "a tensor's name");
  const auto refuse = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail("{}: tensor {}: {}", in.where(), json::quoted(tensor.name),
         fmt::format(format, std::forward<Args>(args)...));
  };
  const auto dimensions = in.take<uint32_t>("a tensor");
  if (dimensions < 1 || dimensions > 4) refuse("expected 1 to 4 dimensions, found {}", dimensions);
  int64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = in.take<uint64_t>("a tensor");
    if (size < 1 || size > uint64_t{1} << 40 ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(size), &elements) ||
        elements > int64_t{1} << 50)
      refuse(
          "expected a size of 1 or more in each dimension and fewer elements than 2^50, found {}",
          size);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const auto id = in.take<uint32_t>("a tensor");
  tensor.stored = find_ggml_type(id);
  if (!tensor.stored || !tensor.stored->type)
    refuse("its type {} is not supported; {} are",
           tensor.stored ? tensor.stored->name : std::to_string(id), supported_types());
  const StorageType& storage = storage_of(*tensor.stored->type);
  if (tensor.shape.back() % storage.block != 0)
    refuse("expected rows of whole blocks of {} elements, found rows of {}", storage.block,
           tensor.shape.back());
  tensor.bytes = tensor.stored->bytes(elements);
  const auto offset = in.take<uint64_t>("a tensor");
  if (offset > uint64_t{1} << 60) refuse("its offset {} is outside any file", offset);
  tensor.begin = static_cast<int64_t>(offset);
  return tensor;
}

// Sorts them by their bytes.
void check_places(GgufHeader& header, int64_t data, int64_t alignment, int64_t size,
                  std::string_view where) {
  std::ranges::sort(header.tensors, {}, &GgufTensor::begin);
  int64_t end = data;
  std::string_view before;
  std::set<std::string_view> names;
  for (GgufTensor& tensor : header.tensors) {
    const auto name = json::quoted(tensor.name);
    if (!names.insert(tensor.name).second) fail("{}: tensor {} stands there twice", where, name);
    if (tensor.begin % alignment)
      fail("{}: tensor {}: expected an offset that is a multiple of {}, found {}", where, name,
           alignment, tensor.begin);
    tensor.begin += data;
    if (tensor.begin < end) fail("{}: tensor {} overlaps {}", where, name, json::quoted(before));
    end = tensor.begin + tensor.bytes;
    before = tensor.name;
    if (end > size)
      fail("{}: the file is cut short: tensor {} ends at byte {}, the file at {}", where, name, end,
           size);
  }
}

}  // namespace

int64_t GgmlType::bytes(int64_t elements) const {
  return bytes_of(*type, elements) - elements / storage_of(*type).block * padding;
}

const GgmlType* find_ggml_type(uint32_t id) {
  const auto* type = std::ranges::find(kGgmlTypes, id, &GgmlType::id);
  return type == std::end(kGgmlTypes) ? nullptr : type;
}

const GgmlType& ggml_type_of(DType type) {
  const auto* found = std::ranges::find(kGgmlTypes, std::optional(type), &GgmlType::type);
  if (found == std::end(kGgmlTypes)) fail("GGUF files hold no {}", name_of(type));
  return *found;
}

GgufHeader read_gguf_header(ReadBytes read, int64_t size, std::string_view where) {
  Cursor in(read, size, where);
  check_begin(in);
  const int64_t tensors = in.count(kMaxGgufTensors, "tensors");
  const int64_t keys = in.count(kMaxGgufKeys, "keys of metadata");
  GgufHeader header;
  for (int64_t i = 0; i < keys; ++i) {
    std::string key = in.text(1 << 16, "a key");
    if (key.empty()) fail("{}: expected keys of at least one byte, found an empty one", where);
    if (!std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; }))
      fail("{}: expected keys of printable ASCII, found {}", where, json::quoted(key));
    json::Value value = read_value(in, key);
    if (!header.metadata.try_emplace(key, std::move(value)).second)
      fail("{}: the key {} stands there twice", where, json::quoted(key));
  }
  for (int64_t i = 0; i < tensors; ++i) header.tensors.push_back(read_tensor(in));
  const int64_t alignment = alignment_of(header, where);
  const int64_t data = (in.at() + alignment - 1) / alignment * alignment;
  check_places(header, data, alignment, size, where);
  return header;
}

bool is_gguf(std::string_view model) {
  std::error_code ignored;
  return model.ends_with(".gguf") && !std::filesystem::is_directory(model, ignored);
}

namespace {

GgufFile::Part open_part(const std::string& path) {
  InputFile file(path);
  GgufHeader header =
      read_gguf_header([&](int64_t offset, std::span<std::byte> out) { file.read_at(offset, out); },
                       file.size(), path);
  return {std::move(file), std::move(header)};
}

// "split.no" and its like, or nothing.
std::optional<int64_t> split_number(const GgufHeader& header, const char* key) {
  const auto found = header.metadata.find(key);
  return found == header.metadata.end() ? std::nullopt : found->second.to_integer();
}

// The path of part i of `count`, by that of the first.
std::string path_of_part(const std::string& first, int64_t i, int64_t count) {
  const auto ending = [&](int64_t number) {
    return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
  };
  if (!first.ends_with(ending(0)))
    fail("{}: expected the first of {} parts, whose name ends with {}", first, count, ending(0));
  return first.substr(0, first.size() - ending(0).size()) + ending(i);
}

}  // namespace

GgufFile::GgufFile(const std::string& path) {
  parts_.push_back(open_part(path));
  const int64_t count = split_number(parts_[0].header, "split.count").value_or(1);
  if (count < 0 || count > 65535)
    fail("{}: split.count: expected 0 to 65535 parts, found {}", path, count);
  for (int64_t i = 1; i < count; ++i) parts_.push_back(open_part(path_of_part(path, i, count)));
  if (count < 2) return;  // 0: parts that were put together again
  std::set<std::string_view> names;
  for (int64_t i = 0; i < count; ++i) {
    const Part& part = parts_[i];
    const auto number = split_number(part.header, "split.no").value_or(-1);
    if (number != i)
      fail("{}: expected part {} of {} by its split.no, found {}", part.file.path(), i, count,
           number);
    for (const GgufTensor& tensor : part.header.tensors)
      if (!names.insert(tensor.name).second)
        fail("{}: tensor {} stands in an earlier part, too", part.file.path(),
             json::quoted(tensor.name));
  }
  const auto all = split_number(parts_[0].header, "split.tensors.count");
  if (all && *all != std::ssize(names))
    fail("{}: split.tensors.count: expected {} tensors in all parts, found {}", path, *all,
         names.size());
}

const json::Value* GgufFile::find(std::string_view key) const {
  const auto found = metadata().find(key);
  return found == metadata().end() ? nullptr : &found->second;
}

}  // namespace invar
