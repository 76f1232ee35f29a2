// Plain data through bytes and back, little-endian, for messages between processes. The reader
// trusts nothing: every length is compared with what is left before anything is made from it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace invar {

static_assert(std::endian::native == std::endian::little);

class ByteWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  // A count and that many elements.
  template <typename T>
  void put_vector(const std::vector<T>& values) {
    put(static_cast<uint64_t>(values.size()));
    for (const T& value : values) put(value);
  }
  // A count and that many bytes.
  void put_text(std::string_view text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  // `what` names the message in errors: "a batch".
  ByteReader(std::string_view bytes, const char* what) : bytes_(bytes), what_(what) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    T value;
    get_bytes(&value, sizeof value);
    return value;
  }
  void get_bytes(void* to, size_t size) {
    if (bytes_.size() - at_ < size) fail("{} ends early, at byte {}", what_, bytes_.size());
    if (size > 0) std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }
  // A count of elements that take at least `element_bytes` each in what follows.
  size_t get_count(size_t element_bytes) {
    const uint64_t count = get<uint64_t>();
    if (count > (bytes_.size() - at_) / element_bytes)
      fail("{} names {} elements at byte {} but only {} bytes follow", what_, count, at_ - 8,
           bytes_.size() - at_);
    return count;
  }
  template <typename T>
  std::vector<T> get_vector() {
    std::vector<T> values(get_count(sizeof(T)));
    for (T& value : values) value = get<T>();
    return values;
  }
  std::string get_text() {
    const size_t size = get_count(1);
    at_ += size;
    return std::string(bytes_.substr(at_ - size, size));
  }
  [[noreturn]] void fail_with(const char* found) const {
    fail("{} is malformed: {}, before byte {}", what_, found, at_);
  }
  void expect_end() const {
    if (at_ != bytes_.size()) fail("{} has {} bytes too many", what_, bytes_.size() - at_);
  }

 private:
  std::string_view bytes_;
  const char* what_;
  size_t at_ = 0;
};

}  // namespace invar
