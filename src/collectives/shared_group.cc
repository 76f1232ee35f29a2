// Ranks that are processes of one host. Each lays its operand into its slot of the shared memory,
// a piece at a time, and reads the slots of the others: nothing goes through the kernel.
#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "collectives/peer_group.h"
#include "collectives/shared_word.h"
#include "collectives/team.h"

namespace invar {

namespace {

// A piece of an operand: stays in a core's cache between those who write and read it.
constexpr int64_t kPiece = 256 << 10;
// Begins as zeros, which is how the memory comes: no rank may be first.
struct Meeting {
  std::atomic<int32_t> leaver;  // 1 + the first rank that has left; 0: none
  SharedWord arrived[64];       // how often each rank has come to a meeting
};

class SharedGroup final : public Group {
 public:
  SharedGroup(const SharedPlace& place, SharedMemory& memory)
      : place_(place),
        meeting_(*reinterpret_cast<Meeting*>(memory.data())),
        add_(team::add_of(place.size)) {}

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }

  void barrier() override {
    meeting_.arrived[rank()].add(1);
    ++round_;
    const auto look = [&] { look_at_others(); };
    for (int r = 0; r < size(); ++r)
      if (r != rank() && !meeting_.arrived[r].wait(round_, place_.spins, look))
        throw PeerLeft(fmt::format("rank {} has left its group", meeting_.leaver.load() - 1));
  }

  void leave() override {
    int32_t nobody = 0;
    meeting_.leaver.compare_exchange_strong(nobody, rank() + 1);
    for (int r = 0; r < size(); ++r) meeting_.arrived[r].end();
  }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    constexpr int64_t kFloats = kPiece / sizeof(float);
    const ScopedFlushToZero flush;
    for (int64_t at = 0; at < count; at += kFloats)
      reduce_piece(data + at, std::min(kFloats, count - at), on);
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int64_t piece = std::min(kPiece, bytes - at);
      begin_piece();
      team::copy(on, slot(rank()), static_cast<const char*>(mine) + at, piece);
      barrier();
      for (int r = 0; r < size(); ++r)
        team::copy(on, static_cast<char*>(all) + r * bytes + at, slot(r), piece);
    }
  }

 private:
  // Slots are used in turns: who comes to the meeting of a piece has done with the one before it,
  // so that slots of two pieces before are free.
  void begin_piece() { turn_ = 1 - turn_; }
  std::byte* slot(int rank) const {
    return reinterpret_cast<std::byte*>(&meeting_ + 1) + (2 * rank + turn_) * kPiece;
  }

  void reduce_piece(float* data, int64_t count, const Execution& on) {
    begin_piece();
    const float* slots[64];
    for (int r = 0; r < size(); ++r) slots[r] = reinterpret_cast<const float*>(slot(r));
    float* own = reinterpret_cast<float*>(slot(rank()));
    team::copy(on, own, data, count * static_cast<int64_t>(sizeof(float)));
    barrier();
    if (size() == 2 || count < team::kTwoShots)
      return team::share_out(on, {0, count}, [&](Part::Run run) { add_(slots, run, data); });
    team::share_out(on, team::share_of(rank(), size(), count),
                    [&](Part::Run run) { add_(slots, run, own); });
    barrier();
    for (int r = 0; r < size(); ++r) {
      const Part::Run run = team::share_of(r, size(), count);
      team::copy(on, data + run.begin, slots[r] + run.begin,
                 (run.end - run.begin) * static_cast<int64_t>(sizeof(float)));
    }
  }

  // A rank that dies says nothing: its neighbours see it, and leave for it.
  void look_at_others() {
    const std::string wrong = place_.trouble ? place_.trouble() : "";
    if (wrong.empty()) return;
    leave();
    throw PeerLeft(wrong);
  }

  const SharedPlace place_;
  Meeting& meeting_;
  const team::Add add_;
  uint32_t round_ = 0;
  int turn_ = 0;
};

}  // namespace

uint32_t* leaver_of(SharedMemory& memory) {
  static_assert(offsetof(Meeting, leaver) == 0 && sizeof(Meeting::leaver) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(memory.data());
}

size_t shared_group_bytes(int size) {
  return sizeof(Meeting) + static_cast<size_t>(2 * size) * kPiece;
}

std::unique_ptr<Group> make_shared_group(const SharedPlace& place, SharedMemory& memory) {
  CHECK(place.size >= 2 && place.size <= 64 && (place.size & (place.size - 1)) == 0,
        "ranks come in powers of two up to 64");
  CHECK(memory.size() >= shared_group_bytes(place.size), "shared memory of another group");
  return std::make_unique<SharedGroup>(place, memory);
}

}  // namespace invar
