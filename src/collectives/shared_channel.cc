// From a stage to the next in another process of the host: a ring of bytes in shared memory.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "collectives/channel.h"
#include "collectives/group.h"
#include "collectives/shared_word.h"

namespace invar {

namespace {

constexpr uint32_t kRing = 1 << 20, kPiece = kRing / 4;

// Begins as zeros, which is how the memory comes.
struct Ring {
  SharedWord sent, received;  // bytes
  std::byte bytes[kRing];
};

// One of its two ends. Neither looks before it sleeps: stages share cores.
class SharedChannel final : public Channel {
 public:
  SharedChannel(SharedMemory& memory, Trouble trouble)
      : ring_(*reinterpret_cast<Ring*>(memory.data())), trouble_(std::move(trouble)) {}

  void send(const void* data, size_t bytes) override {
    in_pieces(bytes, [&](size_t at, uint32_t piece) {
      wait(ring_.received, done_ + piece - kRing, "behind");
      move(piece, [&](std::byte* ring, size_t from, size_t count) {
        std::memcpy(ring, static_cast<const std::byte*>(data) + at + from, count);
      });
      ring_.sent.add(piece);
    });
  }

  void receive(void* data, size_t bytes) override {
    in_pieces(bytes, [&](size_t at, uint32_t piece) {
      wait(ring_.sent, done_ + piece, "before");
      move(piece, [&](const std::byte* ring, size_t from, size_t count) {
        std::memcpy(static_cast<std::byte*>(data) + at + from, ring, count);
      });
      ring_.received.add(piece);
    });
  }

  void leave() override {
    ring_.sent.end();
    ring_.received.end();
  }

 private:
  template <typename Work>
  static void in_pieces(size_t bytes, Work work) {
    for (size_t at = 0; at < bytes; at += kPiece)
      work(at, static_cast<uint32_t>(std::min<size_t>(kPiece, bytes - at)));
  }

  // The next bytes of the ring, which may go round.
  template <typename Copy>
  void move(uint32_t piece, Copy copy) {
    const uint32_t begin = done_ % kRing, first = std::min(piece, kRing - begin);
    copy(ring_.bytes + begin, 0, first);
    copy(ring_.bytes, first, piece - first);
    done_ += piece;
  }

  void wait(SharedWord& word, uint32_t target, const char* where) {
    const auto look = [&] {
      const std::string wrong = trouble_ ? trouble_() : "";
      if (wrong.empty()) return;
      leave();
      throw PeerLeft(wrong);
    };
    if (!word.wait(target, 0, look))
      throw PeerLeft(fmt::format("the stage {} has left its channel", where));
  }

  Ring& ring_;
  const Trouble trouble_;
  uint32_t done_ = 0;  // bytes that went through this end, going round
};

}  // namespace

size_t shared_channel_bytes() {
  return sizeof(Ring);
}

std::unique_ptr<Channel> make_shared_channel(SharedMemory& memory, Trouble trouble) {
  CHECK(memory.size() >= sizeof(Ring), "shared memory of another channel");
  return std::make_unique<SharedChannel>(memory, std::move(trouble));
}

}  // namespace invar
