#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/socket.h"
#include "collectives/channel.h"
#include "collectives/group.h"

namespace invar {

namespace {

void send_bytes(int peer, const void* data, size_t bytes) {
  if (!send_all(peer, data, bytes))
    throw PeerLeft(
        fmt::format("expected a worker to take {} bytes, found: {}", bytes, std::strerror(errno)));
}

void receive_bytes(int peer, void* data, size_t bytes) {
  if (!receive_all(peer, data, bytes))
    throw PeerLeft(fmt::format("expected {} bytes of a worker, found {}", bytes,
                               errno == 0 ? "its end" : std::strerror(errno)));
}

// A binary tree of sockets. In the level of stride s the ranks that are multiples of 2s receive
// from the rank s above them and add what comes behind their own, which is the tree of group.h;
// results go back the same ways.
class SocketGroup final : public Group {
 public:
  SocketGroup(int rank, std::vector<int> peers) : rank_(rank), peers_(std::move(peers)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }

  void tree_all_reduce(float* data, int64_t count, const Execution&) override {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    received_.resize(static_cast<size_t>(count));
    up([&](int peer) { send_bytes(peer, data, bytes); },
       [&](int peer, int) {
         receive_bytes(peer, received_.data(), bytes);
         for (int64_t i = 0; i < count; ++i) data[i] = data[i] + received_[i];
       });
    down([&](int peer) { receive_bytes(peer, data, bytes); },
         [&](int peer) { send_bytes(peer, data, bytes); });
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution&) override {
    char* pieces = static_cast<char*>(all);
    std::memcpy(pieces + rank_ * bytes, mine, static_cast<size_t>(bytes));
    // A rank that sends in the level of stride s holds the pieces of s ranks, its own first.
    up([&](int peer) { send_bytes(peer, pieces + rank_ * bytes, held() * bytes); },
       [&](int peer, int stride) {
         receive_bytes(peer, pieces + (rank_ + stride) * bytes, stride * bytes);
       });
    down([&](int peer) { receive_bytes(peer, pieces, size() * bytes); },
         [&](int peer) { send_bytes(peer, pieces, size() * bytes); });
  }

  void barrier() override {
    char nothing = 0;
    all_gather(&nothing, 1, everyone_.data(), {});
  }
  // The others find their connections ended, and fail too.
  void leave() override {
    for (const int peer : peers_)
      if (peer >= 0) ::shutdown(peer, SHUT_RDWR);
  }

 private:
  // Ranks whose operands this one holds when it sends: the lowest bit of its number.
  int held() const { return rank_ == 0 ? size() : rank_ & -rank_; }

  template <typename Send, typename Receive>
  void up(Send send, Receive receive) {
    for (int stride = 1; stride < held(); stride *= 2) receive(peers_[rank_ + stride], stride);
    if (rank_ > 0) send(peers_[rank_ - held()]);
  }
  template <typename Receive, typename Send>
  void down(Receive receive, Send send) {
    if (rank_ > 0) receive(peers_[rank_ - held()]);
    for (int stride = held() / 2; stride >= 1; stride /= 2) send(peers_[rank_ + stride]);
  }

  int rank_;
  std::vector<int> peers_;
  std::vector<float> received_;
  std::vector<char> everyone_ = std::vector<char>(peers_.size());
};

class SocketChannel final : public Channel {
 public:
  explicit SocketChannel(int socket) : socket_(socket) {}
  void send(const void* data, size_t bytes) override { send_bytes(socket_, data, bytes); }
  void receive(void* data, size_t bytes) override { receive_bytes(socket_, data, bytes); }
  void leave() override { ::shutdown(socket_, SHUT_RDWR); }

 private:
  const int socket_;
};

}  // namespace

std::unique_ptr<Channel> make_socket_channel(int socket) {
  return std::make_unique<SocketChannel>(socket);
}

std::vector<int> socket_peers(int rank, int size) {
  CHECK(size >= 1 && (size & (size - 1)) == 0 && 0 <= rank && rank < size,
        "ranks come in powers of two");
  std::vector<int> peers;
  const int held = rank == 0 ? size : rank & -rank;
  if (rank > 0) peers.push_back(rank - held);
  for (int stride = 1; stride < held; stride *= 2) peers.push_back(rank + stride);
  return peers;
}

std::unique_ptr<Group> make_socket_group(int rank, std::vector<int> peers) {
  for (const int other : socket_peers(rank, static_cast<int>(peers.size())))
    CHECK(peers[other] >= 0, "a rank without a socket to its neighbour in the tree");
  return std::make_unique<SocketGroup>(rank, std::move(peers));
}

}  // namespace invar
