// The host as a device: memory that is zero and aligned, streams that do everything at once.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "device/device.h"

namespace invar {
namespace {

TEST(HostDevice, GivesZeroedAlignedMemory) {
  const auto device = make_host_device();
  EXPECT_TRUE(device->is_host());
  for (const size_t size : {size_t{1}, size_t{4097}, size_t{5} << 20}) {
    const DeviceArray<uint8_t> array(*device, size, "a test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 64, 0u);
    EXPECT_EQ(std::accumulate(array.data(), array.data() + size, size_t{0}), 0u);
    // Also what was used before.
    std::fill(array.data(), array.data() + size, uint8_t{255});
    const DeviceArray<uint8_t> next(*device, size, "a test");
    EXPECT_EQ(std::accumulate(next.data(), next.data() + size, size_t{0}), 0u);
  }
}

TEST(HostDevice, SaysWhatThereIsNoRoomFor) {
  const auto device = make_host_device();
  try {
    device->allocate(size_t{1} << 60, "the whole world");
    FAIL() << "there is not so much memory";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("not enough memory for the whole world"),
              std::string::npos);
  }
}

TEST(HostDevice, AnArrayThatWasMovedIsEmpty) {
  const auto device = make_host_device();
  DeviceArray<int> first(*device, 3, "a test");
  int* const data = first.data();
  DeviceArray<int> second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 3u);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
}

TEST(HostDevice, CopiesAreDoneWhenTheyReturn) {
  const auto device = make_host_device();
  const auto stream = device->make_stream();
  PinnedArray<int> from(*device, 6, "a test");
  DeviceArray<int> to(*device, 8, "a test");
  std::iota(from.data(), from.data() + 6, 1);
  stream->upload(to.data(), from.data(), 6 * sizeof(int));
  EXPECT_EQ(to.data()[5], 6);
  // Two rows of two, three apart, to rows that are four apart.
  stream->copy_rows(to.data(), 4 * sizeof(int), from.data(), 3 * sizeof(int), 2 * sizeof(int), 2);
  EXPECT_EQ(std::vector<int>(to.data(), to.data() + 8), (std::vector<int>{1, 2, 3, 4, 4, 5, 0, 0}));
  stream->clear(to.data() + 1, 2 * sizeof(int));
  EXPECT_EQ(to.data()[0], 1);
  EXPECT_EQ(to.data()[1] + to.data()[2], 0);
  EXPECT_EQ(to.data()[3], 4);
}

// Nothing is recorded, since a launch costs nothing; and nobody ever waits.
TEST(HostDevice, HasNoGraphsAndMakesNobodyWait) {
  const auto device = make_host_device();
  const auto stream = device->make_stream();
  const auto begin = device->make_event(), end = device->make_event();
  stream->record(*begin);
  bool is_done = false;
  EXPECT_EQ(stream->record_graph([&] { is_done = true; }), nullptr);
  EXPECT_FALSE(is_done);
  stream->record(*end);
  end->wait();
  stream->wait();
  EXPECT_EQ(end->seconds_since(*begin), 0.0);
  EXPECT_EQ(device->waits(), 0);
}

}  // namespace
}  // namespace invar
