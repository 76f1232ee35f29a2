#include "engine/device_clock.h"

#include <gtest/gtest.h>

#include "base/timer.h"
#include "support/deferred_device.h"

namespace invar {
namespace {

// Two steps are given to the device at once; the first is much longer. What the host sees, that
// giving took no time and that both were done together, is neither's time.
TEST(DeviceClock, TellsStepsInFlightApart) {
  const auto device = make_deferred_device();
  const auto stream = device->make_stream();
  const DeviceArray<std::byte> memory(*device, size_t{64} << 20, "a test");
  DeviceClock clock({device.get(), stream.get()});
  const Timer giving;
  for (const int64_t step : {0, 1}) {
    clock.begin(step);
    for (int i = 0; i < (step == 0 ? 8 : 1); ++i)
      stream->clear(memory.data(), step == 0 ? memory.size() : size_t{1} << 16);
    clock.end(step);
  }
  const double given = giving.seconds();
  const Timer working;
  stream->wait();
  EXPECT_GT(clock.seconds_of(0), 10 * clock.seconds_of(1));
  EXPECT_GT(clock.seconds_of(0), given);
  EXPECT_LE(clock.seconds_of(0) + clock.idle_seconds_before(1) + clock.seconds_of(1),
            working.seconds());
  EXPECT_GT(clock.seconds_of(1), 0);
}

}  // namespace
}  // namespace invar
