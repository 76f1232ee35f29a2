// A group over messages between two ranks: a binary tree of them. In the level of stride s the
// ranks that are multiples of 2s receive from the rank s above them and add what comes behind their
// own, which is the tree of group.h; results go back the same ways.
#pragma once

#include <cstring>
#include <vector>

#include "collectives/group.h"

namespace invar {

class TreeGroup : public Group {
 public:
  TreeGroup(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void tree_all_reduce(float* data, int64_t count, const Execution&) override {
    const ScopedFlushToZero flush;
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    received_.resize(static_cast<size_t>(count));
    up([&](int peer) { send(peer, data, bytes); },
       [&](int peer, int) {
         receive(peer, received_.data(), bytes);
         for (int64_t i = 0; i < count; ++i) data[i] = data[i] + received_[i];
       });
    down([&](int peer) { receive(peer, data, bytes); }, [&](int peer) { send(peer, data, bytes); });
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution&) override {
    char* pieces = static_cast<char*>(all);
    std::memcpy(pieces + rank_ * bytes, mine, static_cast<size_t>(bytes));
    // A rank that sends in the level of stride s holds the pieces of s ranks, its own first.
    up([&](int peer) { send(peer, pieces + rank_ * bytes, held() * bytes); },
       [&](int peer, int stride) {
         receive(peer, pieces + (rank_ + stride) * bytes, stride * bytes);
       });
    down([&](int peer) { receive(peer, pieces, size() * bytes); },
         [&](int peer) { send(peer, pieces, size() * bytes); });
  }

  void barrier() override {
    char nothing = 0;
    everyone_.resize(static_cast<size_t>(size_));
    all_gather(&nothing, 1, everyone_.data(), {});
  }

 protected:
  // To and from a rank of socket_peers. Throw PeerLeft.
  virtual void send(int peer, const void* data, size_t bytes) = 0;
  virtual void receive(int peer, void* data, size_t bytes) = 0;

 private:
  // Ranks whose operands this one holds when it sends: the lowest bit of its number.
  int held() const { return rank_ == 0 ? size_ : rank_ & -rank_; }

  template <typename Send, typename Receive>
  void up(Send send_to, Receive receive_from) {
    for (int stride = 1; stride < held(); stride *= 2) receive_from(rank_ + stride, stride);
    if (rank_ > 0) send_to(rank_ - held());
  }
  template <typename Receive, typename Send>
  void down(Receive receive_from, Send send_to) {
    if (rank_ > 0) receive_from(rank_ - held());
    for (int stride = held() / 2; stride >= 1; stride /= 2) send_to(rank_ + stride);
  }

  const int rank_, size_;
  std::vector<float> received_;
  std::vector<char> everyone_;
};

}  // namespace invar
