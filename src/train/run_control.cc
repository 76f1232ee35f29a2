#include "train/run_control.h"

#include "base/error.h"

namespace invar {

void make_run_directory(const RunControl& control) {
  std::error_code error;
  std::filesystem::create_directories(control.checkpoints(), error);
  if (error) fail("{}: cannot be created: {}", control.output, error.message());
}

}  // namespace invar
