#include "collectives/group.h"

namespace invar {

namespace {

class StagedGroup final : public Group {
 public:
  StagedGroup(Device& device, Group& host_group) : device_(device), host_(host_group) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void barrier() override { host_.barrier(); }

  void tree_all_reduce(float* data, int64_t count) override {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    float* staged = reinterpret_cast<float*>(staging(mine_, bytes));
    device_.download(staged, data, bytes);
    host_.tree_all_reduce(staged, count);
    device_.upload(data, staged, bytes);
  }

  void all_gather(const void* mine, int64_t bytes, void* all) override {
    const size_t one = static_cast<size_t>(bytes), whole = one * static_cast<size_t>(size());
    std::byte* staged = staging(mine_, one);
    std::byte* gathered = staging(all_, whole);
    device_.download(staged, mine, one);
    host_.all_gather(staged, bytes, gathered);
    device_.upload(all, gathered, whole);
  }

 private:
  static std::byte* staging(std::vector<std::byte>& memory, size_t bytes) {
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
  }

  Device& device_;
  Group& host_;
  std::vector<std::byte> mine_, all_;
};

}  // namespace

std::unique_ptr<Group> make_staged_group(Device& device, Group& host_group) {
  return std::make_unique<StagedGroup>(device, host_group);
}

}  // namespace invar
