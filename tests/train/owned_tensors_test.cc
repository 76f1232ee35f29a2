#include "train/owned_tensors.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "model/families/make_model.h"
#include "training_case.h"

namespace invar {
namespace {

TEST(OwnedTensors, AreWholeAndTogetherAll) {
  for (const TinyModel& model : tiny_models()) {
    const ParameterLayout layout(model.spec);
    int64_t largest = 0;
    for (const auto& slot : layout.slots()) largest = std::max(largest, slot.count);
    for (const int ranks : {1, 2, 4, 8, 64}) {
      const auto shares = share_tensors(layout, ranks);
      ASSERT_EQ(std::ssize(shares), ranks);
      int64_t end = 0;
      for (const OwnedTensors& share : shares) {
        EXPECT_EQ(share.begin, end);
        EXPECT_LE(share.begin, share.end);
        EXPECT_LE(share.count(), layout.size() / ranks + largest + 16) << ranks;
        for (const auto& slot : layout.slots())
          EXPECT_EQ(slot.offset >= share.begin &&
                    slot.offset<share.end, slot.offset + slot.count> share.begin &&
                    slot.offset + slot.count <= share.end)
              << slot.tensor.name << " is cut over " << ranks;
        end = share.end;
      }
      EXPECT_EQ(end, layout.size());
    }
  }
}

// Parts of unequal length, one of several pieces, one of none.
TEST(OwnedTensors, EveryRankGetsThePartsOfAll) {
  const std::vector<OwnedTensors> shares{{0, 5}, {5, 700005}, {700005, 700005}, {700005, 1000000}};
  std::vector<float> expected(1000000);
  std::iota(expected.begin(), expected.end(), 1.0f);
  auto groups = make_inproc_groups(4);
  std::vector<std::vector<float>> all(4, std::vector<float>(expected.size()));
  {
    std::vector<std::jthread> ranks;
    for (size_t r = 0; r < 4; ++r)
      ranks.emplace_back([&, r] {
        const float* mine = expected.data() + shares[r].begin;
        exchange_owned(*groups[r], shares, mine, r == 2 ? nullptr : all[r].data(), {});
      });
  }
  EXPECT_EQ(all[0], expected);
  EXPECT_EQ(all[1], expected);
  EXPECT_EQ(all[2], std::vector<float>(expected.size())) << "rank 2 wanted nothing";
  EXPECT_EQ(all[3], expected);
}

}  // namespace
}  // namespace invar
