#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "kv/block_table.h"

namespace invar {
namespace {

TEST(BlockPool, RefusesOtherBlockSizes) {
  for (const int slots : {32, 64, 128}) EXPECT_EQ(BlockPool(4, slots).block_size(), slots);
  for (const int slots : {-32, 0, 1, 16, 33, 96, 256})
    EXPECT_THROW(BlockPool(4, slots), UsageError) << slots;
  EXPECT_THROW(BlockPool(0, 32), UsageError);
}

TEST(BlockPool, CountsFollowEveryCall) {
  std::mt19937 random(1);
  BlockPool pool(50, 32);
  std::map<int32_t, int> model;  // block -> references
  for (int step = 0; step < 20000; ++step) {
    const int choice = random() % 3;
    if (choice == 0 && pool.free_blocks() > 0) {
      const int32_t block = pool.allocate();
      ASSERT_TRUE(model.emplace(block, 1).second) << "block " << block << " was in use";
    } else if (!model.empty()) {
      auto it = std::next(model.begin(), random() % model.size());
      if (choice == 1) {
        pool.add_reference(it->first);
        ++it->second;
      } else {
        pool.release(it->first);
        if (--it->second == 0) model.erase(it);
      }
    }
    ASSERT_EQ(pool.check_integrity(), "");
    ASSERT_EQ(pool.free_blocks(), 50 - std::ssize(model));
    for (const auto& [block, count] : model) ASSERT_EQ(pool.references(block), count);
  }
}

TEST(BlockPool, MisuseStops) {
  BlockPool pool(1, 32);
  EXPECT_DEATH(pool.release(0), "free block");
  EXPECT_DEATH(pool.add_reference(0), "free block");
  pool.allocate();
  EXPECT_DEATH(pool.allocate(), "no free block");
}

// Tables with their contents, in a memory of one number per slot. Every table always reads what
// was written to it, whoever else holds its blocks.
TEST(BlockTable, SharedBlocksKeepTheirContents) {
  std::mt19937 random(2);
  BlockPool pool(40, 32);
  std::vector<int> memory(40 * 32, -1);
  struct Sequence {
    BlockTable table;
    std::vector<int> contents;
  };
  std::vector<Sequence> live;
  int next = 0, forks = 0, refused = 0;
  const auto at = [&](const Sequence& s, size_t slot) -> int& {
    return memory[s.table.blocks()[slot / 32] * 32 + slot % 32];
  };
  for (int step = 0; step < 5000; ++step) {
    const int choice = random() % 8;
    if (choice == 0 || live.empty()) {
      live.push_back({BlockTable(pool), {}});
    } else if (choice == 1) {
      live.erase(live.begin() + random() % live.size());
    } else if (choice == 2) {
      const Sequence& source = live[random() % live.size()];
      const size_t slots = random() % (source.contents.size() + 1);
      Sequence copy{BlockTable(pool), {source.contents.begin(), source.contents.begin() + slots}};
      std::vector<SlotCopy> copies;
      if (copy.table.fork(source.table, slots, copies)) {
        for (const SlotCopy& c : copies)
          for (int i = c.begin; i < c.end; ++i) memory[c.to * 32 + i] = memory[c.from * 32 + i];
        live.push_back(std::move(copy));
        ++forks;
      } else {
        EXPECT_EQ(copy.table.num_blocks(), 0);
        ++refused;
      }
    } else {
      Sequence& s = live[random() % live.size()];
      const size_t more = s.contents.size() + random() % 70;
      const int before = pool.free_blocks();
      if (s.table.grow(more)) {
        while (s.contents.size() < more) {
          s.contents.push_back(next);
          at(s, s.contents.size() - 1) = next++;
        }
      } else {
        EXPECT_EQ(pool.free_blocks(), before);
        ++refused;
      }
    }
    ASSERT_EQ(pool.check_integrity(), "");
    int held = 0;
    for (const Sequence& s : live) {
      held += s.table.num_blocks();
      ASSERT_LE(s.contents.size(), static_cast<size_t>(s.table.capacity()));
      for (size_t i = 0; i < s.contents.size(); ++i) ASSERT_EQ(at(s, i), s.contents[i]);
    }
    int references = 0;
    for (int block = 0; block < pool.num_blocks(); ++block) references += pool.references(block);
    ASSERT_EQ(references, held);
  }
  EXPECT_GT(forks, 100);
  EXPECT_GT(refused, 100);
  live.clear();
  EXPECT_EQ(pool.free_blocks(), 40);
}

TEST(BlockTable, TruncateGivesBackWholeBlocks) {
  BlockPool pool(10, 64);
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(64 * 4 + 1));
  EXPECT_EQ(table.num_blocks(), 5);
  table.truncate(64 * 4);
  EXPECT_EQ(table.num_blocks(), 4);
  table.truncate(1);
  EXPECT_EQ(table.num_blocks(), 1);
  table.truncate(0);
  EXPECT_EQ(pool.free_blocks(), 10);
}

}  // namespace
}  // namespace invar
