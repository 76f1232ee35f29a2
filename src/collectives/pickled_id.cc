#include "collectives/pickled_id.h"

#include <cstring>

#include "base/error.h"

namespace invar {

namespace {

// pickle's operations, of protocols 4 and 5, that such an object is made of.
enum Operation : uint8_t {
  kProtocol = 0x80,
  kFrame = 0x95,
  kMemoize = 0x94,
  kText = 0x8c,  // its length in a byte
  kGlobal = 0x93,
  kDict = '}',
  kBytes = 'C',  // its length in a byte
  kPair = 0x86,
  kReduce = 'R',
  kStop = '.'
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  void expect(Operation operation) {
    if (const auto found = next(); found != operation)
      fail(
          "expected NCCL's unique id as a pickled structure of ctypes, found the operation {:#x} "
          "at byte {}",
          found, at_ - 1);
  }
  // The text or the bytes behind one of these operations.
  std::string_view run(Operation operation) {
    expect(operation);
    return take(static_cast<uint8_t>(take(1)[0]));
  }
  void expect_text(std::string_view text) {
    if (const auto found = run(kText); found != text)
      fail("expected {} in a pickled id of NCCL, found {}", text, json_like(found));
  }
  bool is_over() const { return at_ == bytes_.size(); }

 private:
  static std::string json_like(std::string_view text) {
    std::string shown = "\"";
    for (const char c : text.substr(0, 64)) shown += c >= ' ' && c <= '~' ? c : '?';
    return shown + "\"";
  }

  std::string_view take(size_t count) {
    if (bytes_.size() - at_ < count)
      fail("expected a pickled id of NCCL, found its end after {} bytes", bytes_.size());
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  // The next operation but those that say how an object is packed.
  uint8_t next() {
    while (true) {
      const auto found = static_cast<uint8_t>(take(1)[0]);
      if (found == kProtocol)
        take(1);
      else if (found == kFrame)
        take(8);
      else if (found != kMemoize)
        return found;
    }
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace

// _ctypes._unpickle(module.ncclUniqueId, ({}, its bytes))
Nccl::Id unpickled_id(std::string_view pickle) {
  Reader reader(pickle);
  reader.expect_text("_ctypes");
  reader.expect_text("_unpickle");
  reader.expect(kGlobal);
  reader.run(kText);
  reader.expect_text("ncclUniqueId");
  reader.expect(kGlobal);
  reader.expect(kDict);
  const std::string_view bytes = reader.run(kBytes);
  for (const Operation operation : {kPair, kPair, kReduce, kStop}) reader.expect(operation);
  Nccl::Id id;
  if (bytes.size() != sizeof id.bytes || !reader.is_over())
    fail("expected an id of NCCL of {} bytes, found {}", sizeof id.bytes, bytes.size());
  std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
  return id;
}

}  // namespace invar
