// What threads write into pinned buffers reaches a device as a whole, whoever is late, and a
// failure leaves nobody waiting.
#include "model/weight_upload.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/deferred_device.h"

namespace invar {
namespace {

// What unit i consists of.
std::byte value_of(int64_t i) {
  return static_cast<std::byte>(i * 37 % 251 + 1);
}

struct Case {
  int64_t count, bytes, at_once;
  int64_t late = -1, fails = -1;  // units
};

// Units of a buffer or less, more of them than the ring holds.
const Case kCases[] = {{.count = 1, .bytes = 64, .at_once = 16},
                       {.count = 1000, .bytes = 48, .at_once = 7},
                       {.count = 41, .bytes = (3 << 20) + 64, .at_once = 16},
                       {.count = 10, .bytes = 8 << 20, .at_once = 1},
                       {.count = 50'000, .bytes = 1024, .at_once = 16}};

void fill(WeightUpload& upload, ThreadPool& pool, const Case& c, std::byte* target,
          std::vector<std::atomic<int>>& times) {
  upload.fill(pool, {target, c.count, c.bytes, c.at_once},
              [&](int64_t begin, int64_t end, std::byte* at, int share) {
                EXPECT_LT(share, pool.size());
                EXPECT_LE(end - begin, c.at_once);
                for (int64_t i = begin; i < end; ++i) {
                  if (i == c.fails) fail("unit {} fails", i);
                  if (i == c.late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
                  std::memset(at + (i - begin) * c.bytes, static_cast<int>(value_of(i)),
                              static_cast<size_t>(c.bytes));
                  ++times[static_cast<size_t>(i)];
                }
              });
}

void check(Case c, int threads) {
  const auto device = make_deferred_device();
  ThreadPool pool(threads);
  WeightUpload::Buffers buffers;
  std::vector<std::byte> target(static_cast<size_t>(c.count * c.bytes));
  for (const int64_t late : {int64_t{0}, c.count / 2}) {
    WeightUpload upload(*device, buffers);
    const float small[3] = {1, 2, 3};
    float there[3] = {};
    upload.send(reinterpret_cast<std::byte*>(there), small, sizeof small);
    std::ranges::fill(target, std::byte{0});
    std::vector<std::atomic<int>> times(static_cast<size_t>(c.count));
    c.late = late;
    fill(upload, pool, c, target.data(), times);
    upload.wait();
    EXPECT_EQ(std::memcmp(small, there, sizeof small), 0);
    for (int64_t i = 0; i < c.count; ++i) {
      ASSERT_EQ(times[static_cast<size_t>(i)], 1) << i;
      const std::byte* unit = target.data() + i * c.bytes;
      ASSERT_EQ(std::count(unit, unit + c.bytes, value_of(i)), c.bytes) << i << " of " << c.count;
    }
  }
}

TEST(WeightUpload, EveryUnitArrivesOnce) {
  for (const Case& c : kCases)
    for (const int threads : {1, 2, 5}) check(c, threads);
}

TEST(WeightUpload, AFailureIsThrownAndTheNextOneFills) {
  const auto device = make_deferred_device();
  for (const int threads : {1, 2, 5})
    for (const int64_t unit : {0, 20, 40}) {
      ThreadPool pool(threads);
      WeightUpload::Buffers buffers;
      WeightUpload upload(*device, buffers);
      Case c = kCases[2];
      c.fails = unit;
      std::vector<std::byte> target(static_cast<size_t>(c.count * c.bytes));
      std::vector<std::atomic<int>> times(static_cast<size_t>(c.count));
      EXPECT_THROW(fill(upload, pool, c, target.data(), times), Error);
      c.fails = -1;
      fill(upload, pool, c, target.data(), times);
      upload.wait();
      for (int64_t i = 0; i < c.count; ++i)
        ASSERT_EQ(target[static_cast<size_t>((i + 1) * c.bytes - 1)], value_of(i)) << i;
    }
}

}  // namespace
}  // namespace invar
