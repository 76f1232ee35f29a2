#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/socket.h"
#include "collectives/channel.h"
#include "collectives/tree_group.h"

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

class SocketGroup final : public TreeGroup {
 public:
  SocketGroup(int rank, std::vector<int> peers)
      : TreeGroup(rank, static_cast<int>(peers.size())), peers_(std::move(peers)) {}

  // The others find their connections ended, and fail too.
  void leave() override {
    for (const int peer : peers_)
      if (peer >= 0) ::shutdown(peer, SHUT_RDWR);
  }

 private:
  void send(int peer, const void* data, size_t bytes) override {
    send_bytes(peers_[peer], data, bytes);
  }
  void receive(int peer, void* data, size_t bytes) override {
    receive_bytes(peers_[peer], data, bytes);
  }

  const std::vector<int> peers_;
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
