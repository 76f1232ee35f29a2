#include <cstring>

#include "collectives/group.h"

namespace invar {

namespace {

class SoloGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void tree_all_reduce(float*, int64_t, const Execution&) override {}
  void all_gather(const void* mine, int64_t bytes, void* all, const Execution&) override {
    if (mine != all) std::memcpy(all, mine, static_cast<size_t>(bytes));
  }
  void barrier() override {}
  void leave() override {}
};

}  // namespace

Group& solo_group() {
  static SoloGroup group;  // stateless
  return group;
}

}  // namespace invar
