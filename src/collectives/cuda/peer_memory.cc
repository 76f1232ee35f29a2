#include "collectives/cuda/peer_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "device/cuda/cuda_check.h"

namespace invar::cuda {

namespace {

constexpr const char* kWhat = "what ranks exchange";
constexpr size_t kDesk = 32 << 20, kPage = 4096;

// A failure here is not a lasting error.
bool succeeds(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess;
}

// Whether the current GPU, `own`, sees the memory of another one from now on.
bool open_memory_of(int other, int own) {
  int can = 0;
  cuda_check(cudaDeviceCanAccessPeer(&can, own, other), "asking for its peers");
  if (!can) return false;
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  return succeeds(status) || status == cudaErrorPeerAccessAlreadyEnabled;
}

bool is_here(int process) {
  return process == ::getpid();
}

}  // namespace

PeerMemory::PeerMemory(Group& host_group, const Execution& on, const PeerOptions& options,
                       const PeerProcesses* processes)
    : gpu_(gpu_of(on)),
      device_(*on.device),
      cards_(static_cast<size_t>(host_group.size())),
      words_(device_, 2, kWhat) {
  gpu_.make_current();
  cuda_check(cudaGetDevice(&ordinal_), "asking for its number");
  view_.rank = host_group.rank();
  view_.size = host_group.size();
  make_window(options, processes);
  const Card card = make_card(processes);
  host_group.all_gather(&card, sizeof card, cards_.data(), {});
  const char mine = map_all();
  std::vector<char> all(cards_.size());
  host_group.all_gather(&mine, 1, all.data(), {});
  is_mapped_ = std::ranges::count(all, 1) == std::ssize(all);
}

void PeerMemory::make_window(const PeerOptions& options, const PeerProcesses* processes) {
  view_.slot_bytes = static_cast<size_t>(options.one_shot_bytes);
  view_.desk_bytes = processes ? kDesk : 0;
  view_.leaver = words_.data();
  view_.gave_up = words_.data() + 1;
  view_.patience = static_cast<uint64_t>(options.seconds * 1e9);
  view_.asks_every = static_cast<uint64_t>(options.asks_every * 1e9);
  if (processes && processes->leaver &&
      succeeds(cudaHostRegister(processes->leaver, kPage, cudaHostRegisterPortable))) {
    registered_ = processes->leaver;
    view_.leaver = processes->leaver;
  }
  window_ = {device_, view_.window_bytes(), kWhat};
  cuda_check(cudaMemset(window_.data() + PeerWindow::kSlotsAt, 0xff,
                        view_.desk_at() - PeerWindow::kSlotsAt),
             "clearing GPU memory");
  cuda_check(cudaDeviceSynchronize(), "clearing GPU memory");
}

PeerMemory::Card PeerMemory::make_card(bool is_for_processes) const {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, ordinal_), "asking for its properties");
  Card card{.process = ::getpid(),
            .gpu = ordinal_,
            .gpu_id = {},
            .window = window_.data(),
            .leaver = words_.data(),
            .handle = {}};
  std::memcpy(card.gpu_id.data(), properties.uuid.bytes, card.gpu_id.size());
  cudaIpcMemHandle_t handle = {};
  static_assert(sizeof handle == sizeof card.handle);
  if (is_for_processes)
    cuda_check(cudaIpcGetMemHandle(&handle, window_.data()), "sharing its memory");
  std::memcpy(card.handle.data(), &handle, sizeof handle);
  return card;
}

bool PeerMemory::map_all() {
  std::set<std::array<char, 16>> gpus;
  bool sees_all = cards_.size() <= kMostPeers;
  for (size_t r = 0; r < cards_.size() && sees_all; ++r) {
    gpus.insert(cards_[r].gpu_id);
    sees_all = map(cards_[r], view_.windows[r]);
  }
  has_gpus_apart_ = gpus.size() == cards_.size();
  return sees_all;
}

bool PeerMemory::map(const Card& card, std::byte*& window) const {
  if (is_here(card.process)) {
    window = card.window;
    return card.gpu == ordinal_ || open_memory_of(card.gpu, ordinal_);
  }
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, card.handle.data(), sizeof handle);
  void* address = nullptr;
  if (!succeeds(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess)))
    return false;
  window = static_cast<std::byte*>(address);
  return true;
}

PeerMemory::~PeerMemory() {
  finish_kernels();
  for (size_t r = 0; r < std::min<size_t>(cards_.size(), kMostPeers); ++r)
    if (view_.windows[r] && !is_here(cards_[r].process)) cudaIpcCloseMemHandle(view_.windows[r]);
  if (registered_) cudaHostUnregister(registered_);
}

// Those of the others write the window until they are done; none waits for ever.
void PeerMemory::finish_kernels() const {
  for (const Card& card : cards_)
    if (card.window && is_here(card.process) && cudaSetDevice(card.gpu) == cudaSuccess)
      cudaDeviceSynchronize();
  gpu_.try_to_make_current();
}

void PeerMemory::leave() {
  for (const Card& card : cards_)
    if (card.leaver && is_here(card.process)) std::atomic_ref<uint32_t>(*card.leaver).store(1);
}

bool PeerMemory::has_given_up() const {
  return std::atomic_ref<uint32_t>(words_.data()[1]).load() != 0;
}

}  // namespace invar::cuda
