#include "train/run_control.h"

#include "base/atomic_file.h"
#include "collectives/group.h"

namespace invar {

bool RunControl::stops() const {
  const char mine = stop && stop();
  if (!group) return mine;
  std::string all(static_cast<size_t>(group->size()), 0);
  group->all_gather(&mine, 1, all.data(), {});
  return all.find(char{1}) != std::string::npos;
}

bool RunControl::writes() const {
  return !group || group->rank() == 0;
}

void make_run_directory(const RunControl& control) {
  make_directories(control.checkpoints());
}

}  // namespace invar
