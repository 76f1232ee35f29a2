// Ranks that are processes of one host. Each lays its operand into its slot of the shared memory,
// a piece at a time, and reads the slots of the others: nothing goes through the kernel.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "collectives/peer_group.h"
#include "collectives/shared_word.h"

namespace invar {

namespace {

// A piece of an operand: stays in a core's cache between those who write and read it.
constexpr int64_t kPiece = 256 << 10;
// From so many floats on each rank adds its share of them and the others take it over, so that a
// float is added once; below, the second meeting would cost more.
constexpr int64_t kTwoShots = 4096;
constexpr int64_t kAlone = 8192;  // floats that one thread moves sooner than a team

template <int N>
float tree(const float* const* slots, int64_t i) {
  if constexpr (N == 1)
    return slots[0][i];
  else
    return tree<N / 2>(slots, i) + tree<N / 2>(slots + N / 2, i);
}

// to[i] = tree over the slots, for i of [begin, end). A slot may be `to`.
template <int N>
void add_slots(const float* const* slots, int64_t begin, int64_t end, float* to) {
#ifndef __clang__  // which does not know it
#pragma GCC ivdep
#endif
  for (int64_t i = begin; i < end; ++i) to[i] = tree<N>(slots, i);
}

using AddSlots = void (*)(const float* const*, int64_t, int64_t, float*);
AddSlots add_slots_of(int size) {
  switch (size) {
    case 2:
      return add_slots<2>;
    case 4:
      return add_slots<4>;
    case 8:
      return add_slots<8>;
    case 16:
      return add_slots<16>;
    case 32:
      return add_slots<32>;
    default:
      return add_slots<64>;
  }
}

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
        add_(add_slots_of(place.size)) {}

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

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution&) override {
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const size_t piece = static_cast<size_t>(std::min(kPiece, bytes - at));
      begin_piece();
      std::memcpy(slot(rank()), static_cast<const char*>(mine) + at, piece);
      barrier();
      for (int r = 0; r < size(); ++r)
        std::memcpy(static_cast<char*>(all) + r * bytes + at, slot(r), piece);
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
    share_out(on, {0, count}, [&](Part::Run run) { copy(data, run, own); });
    barrier();
    if (size() == 2 || count < kTwoShots)
      return share_out(on, {0, count},
                       [&](Part::Run run) { add_(slots, run.begin, run.end, data); });
    share_out(on, share_of(rank(), count),
              [&](Part::Run run) { add_(slots, run.begin, run.end, own); });
    barrier();
    for (int r = 0; r < size(); ++r)
      share_out(on, share_of(r, count), [&](Part::Run run) { copy(slots[r], run, data); });
  }

  Part::Run share_of(int rank, int64_t count) const { return Part{rank, size()}.of(count, 16); }

  static void copy(const float* from, Part::Run run, float* to) {
    std::memcpy(to + run.begin, from + run.begin,
                static_cast<size_t>(run.end - run.begin) * sizeof(float));
  }

  // work(run) for the runs of [all.begin, all.end) that the threads of this rank have.
  template <typename Work>
  static void share_out(const Execution& on, Part::Run all, Work work) {
    const int64_t count = all.end - all.begin;
    if (!on.pool || count < kAlone) return work(all);
    on.pool->run([&](Part part) {
      const Part::Run run = part.of(count, 16);
      work({all.begin + run.begin, all.begin + run.end});
    });
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
  const AddSlots add_;
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
