// A process of a job over several hosts whose first process is gone.
#include "engine/host_pulse.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

namespace invar::hosts {
namespace {

using namespace std::chrono_literals;
using Sockets = std::pair<std::unique_ptr<SecretSocket>, std::unique_ptr<SecretSocket>>;

// The ends of the first process and of another one.
Sockets connected() {
  SecretListener listener("127.0.0.1", 0, "secret");
  auto other = std::async(std::launch::async,
                          [&] { return connect_to("127.0.0.1", listener.port(), "secret", 5); });
  auto first = listener.accept(5);
  return {std::move(first), other.get()};
}

// Ends the process itself when the pulse has not done so.
[[noreturn]] void live(bool with_first, std::chrono::seconds time) {
  Sockets sockets = connected();
  {
    const HostPulse pulse(std::move(sockets.second));
    if (!with_first) sockets.first = nullptr;
    std::this_thread::sleep_for(time);
  }
  std::_Exit(0);
}

TEST(HostPulseDeathTest, WithoutTheFirstProcessTheOtherOneEnds) {
  EXPECT_EXIT(live(false, 20s), testing::ExitedWithCode(1), "the first process of the job is gone");
}

// The controls: the first process lives; the other one ends by itself before its time is over.
TEST(HostPulseDeathTest, ElseItDoesNot) {
  EXPECT_EXIT(live(true, 12s), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(live(false, 2s), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace invar::hosts
