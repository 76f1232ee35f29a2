// Ranks and stages on any hosts, over connections that know who is at the other end.
#include <cerrno>
#include <cstring>

#include "base/secret_socket.h"
#include "collectives/channel.h"
#include "collectives/tree_group.h"

namespace invar {

namespace {

void send_to(SecretSocket& peer, const void* data, size_t bytes) {
  if (!peer.send(data, bytes))
    throw PeerLeft(fmt::format("expected a worker at {} to take {} bytes, found: {}",
                               peer.address(), bytes, std::strerror(errno)));
}

void receive_from(SecretSocket& peer, void* data, size_t bytes) {
  if (!peer.receive(data, bytes))
    throw PeerLeft(fmt::format("expected {} bytes of a worker at {}, found {}", bytes,
                               peer.address(), errno == 0 ? "its end" : std::strerror(errno)));
}

class SecretGroup final : public TreeGroup {
 public:
  SecretGroup(int rank, std::vector<std::shared_ptr<SecretSocket>> peers)
      : TreeGroup(rank, static_cast<int>(peers.size())), peers_(std::move(peers)) {}

  void leave() override {
    for (const auto& peer : peers_)
      if (peer) peer->shut_down();
  }

 private:
  void send(int peer, const void* data, size_t bytes) override {
    send_to(*peers_[static_cast<size_t>(peer)], data, bytes);
  }
  void receive(int peer, void* data, size_t bytes) override {
    receive_from(*peers_[static_cast<size_t>(peer)], data, bytes);
  }

  const std::vector<std::shared_ptr<SecretSocket>> peers_;
};

class SecretChannel final : public Channel {
 public:
  explicit SecretChannel(std::shared_ptr<SecretSocket> socket) : socket_(std::move(socket)) {}
  void send(const void* data, size_t bytes) override { send_to(*socket_, data, bytes); }
  void receive(void* data, size_t bytes) override { receive_from(*socket_, data, bytes); }
  void leave() override { socket_->shut_down(); }

 private:
  const std::shared_ptr<SecretSocket> socket_;
};

}  // namespace

std::unique_ptr<Group> make_secret_group(int rank,
                                         std::vector<std::shared_ptr<SecretSocket>> peers) {
  return std::make_unique<SecretGroup>(rank, std::move(peers));
}

std::unique_ptr<Channel> make_secret_channel(std::shared_ptr<SecretSocket> socket) {
  return std::make_unique<SecretChannel>(std::move(socket));
}

}  // namespace invar
