// The one pickle that is read, and all that differ from it in a byte.
#include "collectives/pickled_id.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace invar {
namespace {

std::string text(const std::string& said) {
  return '\x8c' + std::string(1, static_cast<char>(said.size())) + said + '\x94';
}

constexpr const char* kModule = "vllm.distributed.device_communicators.pynccl_wrapper";

// pickle.dumps(ncclUniqueId) of Python 3.8 to 3.13, with these bytes.
std::string pickled(const std::string& bytes, const std::string& name = "ncclUniqueId") {
  const std::string body =
      text("_ctypes") + text("_unpickle") + "\x93\x94" + text(kModule) + text(name) + "\x93\x94" +
      "}\x94" + "C" + static_cast<char>(bytes.size()) + bytes + '\x94' + "\x86\x94\x86\x94R\x94.";
  std::string length(8, '\0');
  length[0] = static_cast<char>(body.size());
  return "\x80\x04\x95" + length + body;
}

std::string id_bytes() {
  std::string bytes;
  for (int i = 0; i < 128; ++i) bytes += static_cast<char>(i * 7);
  return bytes;
}

bool is_read(const std::string& pickle) {
  try {
    unpickled_id(pickle);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(PickledId, IsReadAsItStands) {
  const Nccl::Id id = unpickled_id(pickled(id_bytes()));
  EXPECT_EQ(std::string(id.bytes, sizeof id.bytes), id_bytes());
}

TEST(PickledId, NoPartOfItIsRead) {
  const std::string whole = pickled(id_bytes());
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(is_read(whole.substr(0, size)));
  EXPECT_FALSE(is_read(whole + "."));
}

TEST(PickledId, AnotherObjectIsNotRead) {
  EXPECT_FALSE(is_read(pickled(id_bytes().substr(1)))) << "too short";
  EXPECT_FALSE(is_read(pickled(id_bytes() + "x"))) << "too long";
  EXPECT_FALSE(is_read(pickled(id_bytes(), "otherUniqueId")));
  std::string call = pickled(id_bytes());
  call.replace(call.find("_unpickle"), 9, "_unpickl3");
  EXPECT_FALSE(is_read(call));
  std::string system = pickled(id_bytes());
  system.replace(system.find("_ctypes"), 7, "posix_x");
  EXPECT_FALSE(is_read(system));
}

// A byte that may differ says how the pickle is packed, is of the module's name, or the id's.
TEST(PickledId, AByteThatDiffersIsSeen) {
  const std::string whole = pickled(id_bytes());
  const size_t module = whole.find(kModule), id = whole.find(id_bytes());
  for (size_t at = 0; at < whole.size(); ++at) {
    const bool may_differ = at == 1 || (at >= 3 && at < 11) || whole[at] == '\x94' ||
                            (at >= module - 1 && at < module + std::string(kModule).size()) ||
                            (at >= id && at < id + 128);
    std::string other = whole;
    other[at] ^= 1;
    EXPECT_TRUE(!is_read(other) || may_differ) << at;
  }
}

}  // namespace
}  // namespace invar
