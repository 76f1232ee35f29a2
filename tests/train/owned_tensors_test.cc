#include "train/owned_tensors.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "model/families/make_model.h"
#include "train/trained_arrays.h"
#include "training_case.h"

namespace invar {
namespace {

TEST(OwnedTensors, AreWholeAndTogetherAll) {
  for (const TinyModel& model : tiny_models()) {
    const ParameterLayout layout(model.spec);
    int64_t largest = 0;
    for (const auto& slot : layout.slots()) largest = std::max(largest, slot.count);
    for (const int ranks : {1, 2, 4, 8, 64}) {
      const OwnedTensors owned(layout, ranks);
      std::vector<std::vector<int>> used(static_cast<size_t>(ranks));
      for (int r = 0; r < ranks; ++r) {
        EXPECT_LE(owned.count(r), layout.size() / ranks + largest + 16) << ranks;
        used[static_cast<size_t>(r)].resize(static_cast<size_t>(owned.count(r)));
      }
      for (size_t i = 0; i < layout.slots().size(); ++i)
        for (int64_t k = 0; k < layout.slots()[i].count; ++k)
          ++used[static_cast<size_t>(owned.owner(i))].at(static_cast<size_t>(owned.place(i) + k));
      for (const auto& of_rank : used)
        EXPECT_TRUE(std::ranges::all_of(of_rank, [](int n) { return n <= 1; })) << ranks;
      int64_t next = 0, elements = 0;
      owned.for_each_piece(0, layout.size(), [&](int, int64_t, int64_t offset, int64_t count) {
        EXPECT_EQ(offset, next);
        next += count;
        ++elements;
      });
      EXPECT_EQ(next, layout.size());
      EXPECT_EQ(elements, std::ssize(layout.slots()));
    }
  }
}

// What every rank keeps of an array that says where each of its elements stands.
struct Kept {
  Kept(const ParameterLayout& layout, int ranks) : owned(layout, ranks), expected(layout.size()) {
    std::iota(expected.begin(), expected.end(), 1.0f);
    for (int r = 0; r < ranks; ++r) arrays.emplace_back(static_cast<size_t>(owned.count(r)));
    owned.for_each_piece(0, layout.size(), [&](int rank, int64_t place, int64_t at, int64_t count) {
      std::copy_n(&expected[static_cast<size_t>(at)], count,
                  &arrays[static_cast<size_t>(rank)][static_cast<size_t>(place)]);
    });
  }
  OwnedTensors owned;
  std::vector<float> expected;
  std::vector<std::vector<float>> arrays;
};

// A model of which a tensor takes several pieces.
DecoderSpec large_spec() {
  DecoderSpec spec = tiny_models()[0].spec;
  spec.vocab = 7000;
  return spec;
}

template <typename Work>
void on_ranks(int count, Work work) {
  auto groups = make_inproc_groups(count);
  std::vector<std::jthread> ranks;
  for (size_t r = 0; r < static_cast<size_t>(count); ++r)
    ranks.emplace_back([&, r] { work(*groups[r], r); });
}

TEST(OwnedTensors, EveryRankGathersUnitsAndRanges) {
  const DecoderSpec spec = large_spec();
  const ParameterLayout layout(spec);
  ASSERT_GT(layout.units()[0].count(), 300'000);
  const Kept kept(layout, 4);
  const int64_t begin = 100, end = layout.size() - 50;
  std::vector<std::vector<float>> units(4, std::vector<float>(kept.expected.size())),
      ranges(4, std::vector<float>(static_cast<size_t>(end - begin)));
  on_ranks(4, [&](Group& group, size_t r) {
    const float* own = kept.arrays[r].data();
    for (const ParameterLayout::Unit& unit : layout.units())
      gather_unit(group, kept.owned, unit, own, &units[r][static_cast<size_t>(unit.begin)], {});
    gather_range(group, kept.owned, begin, end, own, r == 2 ? nullptr : ranges[r].data(), {});
  });
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(units[r], kept.expected);
    const std::vector<float> part(kept.expected.begin() + begin, kept.expected.begin() + end);
    EXPECT_EQ(ranges[r], r == 2 ? std::vector<float>(part.size()) : part) << r;
  }
}

// The first of several processes reads arrays of which the others have parts.
TEST(TrainedArrays, AreReadWholeFromTheFirstProcess) {
  const DecoderSpec spec = large_spec();
  const ParameterLayout layout(spec);
  const Kept kept(layout, 4);
  std::vector<float> read(kept.expected.size()), some(1000);
  on_ranks(4, [&](Group& group, size_t r) {
    const float* own = kept.arrays[r].data();
    std::vector<bf16_t> rounded;
    for (const float x : kept.arrays[r]) rounded.push_back(f32_to_bf16(x));
    const TrainedArrays arrays(layout, kept.owned, &group, {{own, own, own, rounded.data()}});
    if (r > 0) return arrays.serve();
    arrays.state().read("first", 0, layout.size(), DType::f32, read.data());
    arrays.weights().read("lm_head.weight", 333, 1000, DType::f32, some.data());
    arrays.end_serving();
  });
  EXPECT_EQ(read, kept.expected);
  const auto head = static_cast<size_t>(layout.offset(TensorRole::head)) + 333;
  for (size_t i = 0; i < some.size(); ++i)
    ASSERT_EQ(some[i], bf16_to_f32(f32_to_bf16(kept.expected[head + i])));
}

}  // namespace
}  // namespace invar
