// The memory through which the ranks of a group on GPUs meet: each has a window that the others
// write, and words of the host that say who has left.
#pragma once

#include <array>
#include <vector>

#include "collectives/cuda/peer_kernels.h"
#include "collectives/peer_group.h"
#include "device/cuda/gpu.h"

namespace invar::cuda {

class PeerMemory {
 public:
  // Every rank of `host_group` makes one at the same time. `processes`: null where all are threads
  // of this one.
  PeerMemory(Group& host_group, const Execution& on, const PeerOptions& options,
             const PeerProcesses* processes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;

  // Whether every rank can read and write the windows of all; the same for all of them.
  bool is_mapped() const { return is_mapped_; }
  // Whether no two ranks have the same GPU.
  bool has_gpus_apart() const { return has_gpus_apart_; }
  const PeerView& view() const { return view_; }

  // The kernels of ranks that are threads of this process wait no longer.
  void leave();
  // Whether a kernel of this rank has given up waiting.
  bool has_given_up() const;

 private:
  // The facts that the others are told of this rank.
  struct Card {
    int32_t process, gpu;  // the GPU's number in that process
    std::array<char, 16> gpu_id;
    std::byte* window;  // there
    uint32_t* leaver;
    std::array<char, 64> handle;  // of the window, for other processes
  };

  void make_window(const PeerOptions& options, const PeerProcesses* processes);
  Card make_card(bool is_for_processes) const;
  bool map_all();
  bool map(const Card& card, std::byte*& window) const;
  void finish_kernels() const;

  const Gpu& gpu_;
  Device& device_;
  int ordinal_ = 0;  // of the GPU
  std::vector<Card> cards_;
  DeviceArray<std::byte> window_;
  PinnedArray<uint32_t> words_;  // whether a rank has left, whether this one has given up
  void* registered_ = nullptr;   // the page of the word of processes
  PeerView view_ = {};
  bool is_mapped_ = false, has_gpus_apart_ = false;
};

}  // namespace invar::cuda
