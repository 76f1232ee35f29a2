#include "weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "base/json.h"

namespace invar {

namespace {

constexpr int64_t kSizeBytes = 8;  // the header's size, little-endian, begins the file

// How Git LFS begins a file that it has not fetched: "version https://git-lfs...".
constexpr char kPointer[] = {'v', 'e', 'r', 's', 'i', 'o', 'n', ' '};

struct StoredType {
  std::string_view name;
  int bits;
};

constexpr StoredType kStoredTypes[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32}, {"F32", 32}, {"F64", 64},    {"I64", 64},
    {"U64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

// Those that torch has.
constexpr size_t kMostDimensions = 64;
// A tensor has six and one for each dimension. A checkpoint of the largest models as one
// file has a third of this; what is below is read within seconds.
constexpr size_t kMostHeaderValues = 4'000'000;

// Reads the description of one tensor, whose bytes are offsets into a buffer of `buffer_size`.
class TensorReader {
 public:
  TensorReader(std::string_view where, const std::string& name, const json::Value& entry)
      : where_(where), name_(name), entry_(entry) {}

  SafetensorsTensor read(int64_t buffer_begin, int64_t buffer_size) const {
    if (!entry_.is_object()) refuse("expected a JSON object, found {}", entry_.type_name());
    for (const auto& [key, value] : entry_.as_object())
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        refuse("expected dtype, shape and data_offsets, found {}", json::quoted(key));
    const StoredType type = stored_type();
    const std::vector<int64_t> shape = integers("shape");
    if (shape.size() > kMostDimensions)
      refuse("expected at most {} dimensions, found {}", kMostDimensions, shape.size());
    const std::vector<int64_t> offsets = integers("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      refuse("expected data_offsets [begin, end], found {}",
             json::excerpt(*entry_.find("data_offsets")));
    if (offsets[1] > buffer_size)
      refuse("ends at byte {} of a buffer of {}", offsets[1], buffer_size);
    if (offsets[1] - offsets[0] != byte_size(type, shape))
      refuse("expected {} bytes for shape {} of {}, found {} at byte {}", byte_size(type, shape),
             json::excerpt(*entry_.find("shape")), type.name, offsets[1] - offsets[0],
             buffer_begin + offsets[0]);
    return {name_, std::string(type.name), shape, buffer_begin + offsets[0],
            buffer_begin + offsets[1]};
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: tensor {}: {}", where_, json::quoted(name_),
         fmt::format(format, std::forward<Args>(args)...));
  }

  const json::Value& field(std::string_view key) const {
    const json::Value* value = entry_.find(key);
    if (!value) refuse("the field {} is missing", key);
    return *value;
  }

  StoredType stored_type() const {
    const json::Value& value = field("dtype");
    if (value.is_string())
      for (const StoredType& type : kStoredTypes)
        if (value.as_string() == type.name) return type;
    refuse("expected a dtype of the format, found {}", json::excerpt(value));
  }

  std::vector<int64_t> integers(std::string_view key) const {
    const json::Value& value = field(key);
    if (!value.is_array()) refuse("expected an array as {}, found {}", key, value.type_name());
    std::vector<int64_t> result;
    for (const json::Value& item : value.as_array()) {
      const auto found = item.to_integer();
      if (!item.is_integer() || !found || *found < 0)  // the format knows no 1.0
        refuse("expected integers from 0 in {}, found {}", key, json::excerpt(item));
      result.push_back(*found);
    }
    return result;
  }

  int64_t byte_size(const StoredType& type, const std::vector<int64_t>& shape) const {
    int64_t bits = type.bits;
    for (const int64_t size : shape)
      if (__builtin_mul_overflow(bits, size, &bits))
        refuse("the shape {} has too many elements", json::excerpt(*entry_.find("shape")));
    if (bits % 8) refuse("its {} bits are no whole number of bytes", bits);
    return bits / 8;
  }

  std::string_view where_;
  const std::string& name_;
  const json::Value& entry_;
};

// The JSON text between the size and the tensors' bytes.
std::string_view header_text(std::span<const std::byte> header, std::string_view where) {
  const auto text = header.subspan(kSizeBytes);
  if (text.empty() || text[0] != std::byte{'{'})
    fail("{}: expected a safetensors header that begins with '{{' at byte 8", where);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

void read_metadata(SafetensorsHeader& header, const json::Value& value, std::string_view where) {
  if (!value.is_object())
    fail("{}: expected an object as __metadata__, found {}", where, value.type_name());
  for (const auto& [key, text] : value.as_object()) {
    if (!text.is_string())
      fail("{}: expected strings in __metadata__, found {} as {}", where, text.type_name(),
           json::quoted(key));
    header.metadata.emplace_back(key, text.as_string());
  }
}

// The tensors, in the order of their bytes, must cover [begin, end) once.
void check_cover(const std::vector<SafetensorsTensor>& tensors, int64_t begin, int64_t end,
                 std::string_view where) {
  int64_t next = begin;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin != next)
      fail("{}: tensor {}: expected its bytes at byte {}, found them at {}, which leaves {}", where,
           json::quoted(tensor.name), next, tensor.begin,
           tensor.begin < next ? "an overlap" : "a gap");
    next = tensor.end;
  }
  if (next != end) fail("{}: the tensors end at byte {}, the file at {}", where, next, end);
}

}  // namespace

int64_t safetensors_header_end(std::span<const std::byte> begin, int64_t file_size,
                               std::string_view where) {
  if (file_size < kSizeBytes)
    fail("{}: expected a safetensors file, found one of {} bytes", where, file_size);
  uint64_t size = 0;
  std::memcpy(&size, begin.data(), kSizeBytes);
  if (size > kMaxSafetensorsHeader)
    fail("{}: expected a header of at most {} bytes, found {} in bytes 0 to 7", where,
         kMaxSafetensorsHeader, size);
  const int64_t end = kSizeBytes + static_cast<int64_t>(size);
  if (end > file_size)
    fail("{}: the header of {} bytes at byte 8 does not fit into the file's {} bytes", where, size,
         file_size);
  return end;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> begin, int64_t file_size,
                                           std::string_view where) {
  const int64_t buffer_begin = safetensors_header_end(begin, file_size, where);
  const std::string_view text = header_text(begin.first(buffer_begin), where);
  const json::Value root =
      json::parse(text, where, {.max_depth = 4, .max_values = kMostHeaderValues});
  SafetensorsHeader header;
  for (const auto& [name, value] : root.as_object()) {
    if (name == "__metadata__")
      read_metadata(header, value, where);
    else
      header.tensors.push_back(
          TensorReader(where, name, value).read(buffer_begin, file_size - buffer_begin));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_cover(header.tensors, buffer_begin, file_size, where);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  std::vector<std::byte> header(std::min<int64_t>(file_.size(), kSizeBytes));
  file_.read_at(0, header);
  if (std::ranges::equal(header, std::as_bytes(std::span(kPointer))))
    fail("{}: expected a safetensors file, found Git LFS's pointer to one: run git lfs pull", path);
  header.resize(safetensors_header_end(header, file_.size(), path));
  file_.read_at(0, header);
  header_ = parse_safetensors_header(header, file_.size(), path);
}

}  // namespace invar
