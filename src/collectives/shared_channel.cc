// From a stage to the next in another process of the host: a ring of bytes in shared memory.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "collectives/channel.h"
#include "collectives/group.h"
#include "collectives/shared_word.h"
#include "device/cuda_device.h"

namespace invar {

namespace {

constexpr uint32_t kRing = 1 << 20, kLargeRing = 64 << 20, kMostPiece = 1 << 20;
constexpr uint32_t kAlignment = 4096;  // of what is placed

// Begins as zeros, which is how the memory comes. Its bytes, a power of two of them, stand behind.
struct Ring {
  SharedWord sent, received;  // bytes
};
constexpr size_t kBytesAt = 4096;
static_assert(sizeof(Ring) <= kBytesAt);

// One of its two ends. Neither looks before it sleeps: stages share cores.
class SharedChannel final : public Channel {
 public:
  SharedChannel(SharedMemory& memory, Trouble trouble)
      : ring_(*reinterpret_cast<Ring*>(memory.data())),
        bytes_(memory.data() + kBytesAt),
        size_(static_cast<uint32_t>(memory.size() - kBytesAt)),
        piece_(std::min(size_ / 4, kMostPiece)),
        trouble_(std::move(trouble)) {}

  void send(const void* data, size_t bytes) override {
    in_pieces(bytes, [&](size_t at, uint32_t piece) {
      wait(ring_.received, done_ + piece - size_, "behind");
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
      owed_ += piece;
      if (!taken_) release();
    });
  }

  // A quarter: what is held, what is left free before a place so that it does not go round, and
  // what is placed next are never more than all of it.
  bool has_place_for(size_t bytes) const override {
    return size_ >= kLargeRing && bytes > 0 && bytes <= size_ / 4;
  }

  std::byte* place(size_t bytes) override {
    const Placed at = placed(bytes);
    wait(ring_.received, done_ + at.taken - size_, "behind");
    placed_ = at.taken;
    return at.begin;
  }

  void send_placed() override {
    done_ += placed_;
    ring_.sent.add(std::exchange(placed_, 0));
  }

  std::byte* receive_placed(size_t bytes, std::shared_ptr<Event> taken) override {
    const Placed at = placed(bytes);
    wait(ring_.sent, done_ + at.taken, "before");
    taken_ = std::move(taken);
    owed_ += at.taken;
    done_ += at.taken;
    return at.begin;
  }

  void release() override {
    if (taken_) std::exchange(taken_, nullptr)->wait();
    if (owed_ > 0) ring_.received.add(std::exchange(owed_, 0));
  }

  void pin() override { pinned_ = pin_for_cuda(bytes_, size_); }

  void leave() override {
    ring_.sent.end();
    ring_.received.end();
  }

 private:
  // In one run, for which some bytes at the ring's end may stay free; both ends find the same.
  struct Placed {
    std::byte* begin;
    uint32_t taken;  // with those
  };
  Placed placed(size_t bytes) const {
    const uint32_t begin = done_ % size_,
                   aligned = (begin + kAlignment - 1) / kAlignment * kAlignment;
    const uint32_t at = aligned + bytes > size_ ? size_ : aligned;
    return {bytes_ + at % size_, at - begin + static_cast<uint32_t>(bytes)};
  }

  template <typename Work>
  void in_pieces(size_t bytes, Work work) const {
    for (size_t at = 0; at < bytes; at += piece_)
      work(at, static_cast<uint32_t>(std::min<size_t>(piece_, bytes - at)));
  }

  // The next bytes of the ring, which may go round.
  template <typename Copy>
  void move(uint32_t piece, Copy copy) {
    const uint32_t begin = done_ % size_, first = std::min(piece, size_ - begin);
    copy(bytes_ + begin, 0, first);
    copy(bytes_, first, piece - first);
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
  std::byte* const bytes_;
  const uint32_t size_, piece_;
  const Trouble trouble_;
  uint32_t done_ = 0;             // bytes that went through this end, going round
  uint32_t placed_ = 0;           // bytes that the next send_placed sends
  uint32_t owed_ = 0;             // bytes that were received and are not yet free again
  std::shared_ptr<Event> taken_;  // of what is held
  std::shared_ptr<void> pinned_;
};

}  // namespace

size_t shared_channel_bytes(bool is_large) {
  return kBytesAt + (is_large ? kLargeRing : kRing);
}

std::unique_ptr<Channel> make_shared_channel(SharedMemory& memory, Trouble trouble) {
  CHECK(memory.size() >= shared_channel_bytes(false), "shared memory of another channel");
  return std::make_unique<SharedChannel>(memory, std::move(trouble));
}

}  // namespace invar
