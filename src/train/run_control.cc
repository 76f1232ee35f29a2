#include "train/run_control.h"

#include "base/atomic_file.h"

namespace invar {

void make_run_directory(const RunControl& control) {
  make_directories(control.checkpoints());
}

}  // namespace invar
