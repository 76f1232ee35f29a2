#include "collectives/mpi/mpi_group.h"

#include "collectives/tree_group.h"

namespace invar::mpi {

namespace {

class MpiGroup final : public TreeGroup {
 public:
  MpiGroup(Job& job, int rank, std::vector<int> peers)
      : TreeGroup(rank, static_cast<int>(peers.size())), job_(job), peers_(std::move(peers)) {}

  // Nobody can be told: whoever leaves ends the job (Job::abort).
  void leave() override {}

 private:
  void send(int peer, const void* data, size_t bytes) override {
    job_.send(peers_[peer], Tag::group, data, bytes);
  }
  void receive(int peer, void* data, size_t bytes) override {
    job_.receive(peers_[peer], Tag::group, data, bytes);
  }

  Job& job_;
  const std::vector<int> peers_;
};

class MpiChannel final : public Channel {
 public:
  MpiChannel(Job& job, int peer) : job_(job), peer_(peer) {}
  void send(const void* data, size_t bytes) override { job_.send(peer_, Tag::stage, data, bytes); }
  void receive(void* data, size_t bytes) override { job_.receive(peer_, Tag::stage, data, bytes); }
  void leave() override {}

 private:
  Job& job_;
  const int peer_;
};

}  // namespace

std::unique_ptr<Group> make_group(Job& job, int rank, std::vector<int> peers) {
  return std::make_unique<MpiGroup>(job, rank, std::move(peers));
}

std::unique_ptr<Channel> make_channel(Job& job, int peer) {
  return std::make_unique<MpiChannel>(job, peer);
}

}  // namespace invar::mpi
