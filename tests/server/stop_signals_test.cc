#include "server/stop_signals.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

namespace invar::server {
namespace {

bool is_readable(int file) {
  pollfd look{.fd = file, .events = POLLIN, .revents = 0};
  return ::poll(&look, 1, 0) == 1;
}

TEST(StopSignals, TheFirstMakesTheFileReadable) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const StopSignals signals;
    EXPECT_FALSE(is_readable(signals.file()));
    ::raise(signal);
    EXPECT_TRUE(is_readable(signals.file()));
  }
}

TEST(StopSignalsDeathTest, TheSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        ::raise(SIGTERM);
        ::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignalsDeathTest, AreAsBeforeWithoutIt) {
  EXPECT_EXIT(
      {
        { const StopSignals signals; }
        ::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace invar::server
