#include "collectives/group.h"

namespace invar {

namespace {

class StagedGroup final : public Group {
 public:
  explicit StagedGroup(Group& host_group) : host_(host_group) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void barrier() override { host_.barrier(); }
  void leave() override { host_.leave(); }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    float* staged = reinterpret_cast<float*>(staging(mine_, bytes, on));
    fetch(staged, data, bytes, on);
    host_.tree_all_reduce(staged, count, {});
    on.stream->upload(data, staged, bytes);
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    const size_t one = static_cast<size_t>(bytes), whole = one * static_cast<size_t>(size());
    std::byte* staged = staging(mine_, one, on);
    std::byte* gathered = staging(all_, whole, on);
    fetch(staged, mine, one, on);
    host_.all_gather(staged, bytes, gathered, {});
    on.stream->upload(all, gathered, whole);
  }

 private:
  // Waits for the uploads of operations before as well: the staging memory is free again.
  static void fetch(void* to, const void* from, size_t bytes, const Execution& on) {
    on.stream->download(to, from, bytes);
    on.stream->wait();
  }

  static std::byte* staging(PinnedArray<std::byte>& memory, size_t bytes, const Execution& on) {
    if (memory.size() < bytes) {
      on.stream->wait();  // an upload may still read what is replaced
      memory = {*on.device, bytes, "what ranks exchange"};
    }
    return memory.data();
  }

  Group& host_;
  PinnedArray<std::byte> mine_, all_;
};

}  // namespace

std::unique_ptr<Group> make_staged_group(Group& host_group) {
  return std::make_unique<StagedGroup>(host_group);
}

}  // namespace invar
