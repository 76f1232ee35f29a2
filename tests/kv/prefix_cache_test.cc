#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace invar {
namespace {

constexpr int kSlots = 32;

using Tokens = std::vector<int32_t>;

// `blocks` blocks of equal tokens: one letter each.
Tokens tokens_of(std::string_view blocks) {
  Tokens tokens;
  for (const char c : blocks) tokens.insert(tokens.end(), kSlots, c);
  return tokens;
}

int32_t num_matched(PrefixCache& cache, Tokens tokens, std::string_view salt = "") {
  tokens.push_back(0);  // one more than whole blocks
  std::vector<int32_t> blocks;
  cache.match(tokens, salt, blocks);
  return static_cast<int32_t>(blocks.size());
}

void enter(BlockPool& pool, PrefixCache& cache, std::string_view blocks,
           std::string_view salt = "") {
  BlockTable table(pool);
  const Tokens tokens = tokens_of(blocks);
  ASSERT_TRUE(table.grow(tokens.size()));
  cache.insert(tokens, salt, table);
  ASSERT_EQ(cache.check_integrity(), "");
}

TEST(PrefixCache, FindsTheLongestPrefixOfWholeBlocks) {
  BlockPool pool(20, kSlots);
  PrefixCache cache(pool);
  enter(pool, cache, "abcd");
  EXPECT_EQ(num_matched(cache, tokens_of("abcd")), 4);
  EXPECT_EQ(num_matched(cache, tokens_of("abcx")), 3);
  EXPECT_EQ(num_matched(cache, tokens_of("abcdefg")), 4);
  EXPECT_EQ(num_matched(cache, tokens_of("bcd")), 0);  // a block belongs behind its prefix
  EXPECT_EQ(num_matched(cache, tokens_of("xbcd")), 0);
  EXPECT_EQ(num_matched(cache, {1, 2, 3}), 0);
  Tokens almost = tokens_of("ab");
  almost.pop_back();
  EXPECT_EQ(num_matched(cache, almost), 1 + 0);
  // The last token is always computed.
  std::vector<int32_t> blocks;
  cache.match(tokens_of("ab"), "", blocks);
  EXPECT_EQ(blocks.size(), 1u);
}

// Enters a prompt whose states stand behind so many slots; the cell that they go to.
int32_t enter_with_state(BlockPool& pool, PrefixCache& cache, const std::string& blocks,
                         int32_t state_at) {
  BlockTable table(pool);
  EXPECT_TRUE(table.grow(std::ssize(tokens_of(blocks))));
  const int32_t cell = cache.insert(tokens_of(blocks), "", table, state_at);
  EXPECT_EQ(cache.check_integrity(), "");
  return cell;
}

std::pair<int, int> matched_with_state(PrefixCache& cache, const std::string& blocks) {
  std::vector<int32_t> found;
  const int32_t cell = cache.match(tokens_of(blocks), "", found);
  return {static_cast<int>(found.size()), cell};
}

TEST(PrefixCache, WhereLayersHaveStatesAPrefixEndsWithTheLastSnapshot) {
  BlockPool pool(20, kSlots);
  PrefixCache cache(pool, SnapshotCells{.first = 10, .count = 2});
  EXPECT_EQ(enter_with_state(pool, cache, "abcd", 2 * kSlots), 10);
  EXPECT_EQ(matched_with_state(cache, "abcde"), std::pair(2, 10));
  EXPECT_EQ(matched_with_state(cache, "abx"), std::pair(2, 10));
  EXPECT_EQ(matched_with_state(cache, "ax"), std::pair(0, -1));
  // It is there already; no entry ends there.
  EXPECT_EQ(enter_with_state(pool, cache, "abcd", 2 * kSlots), -1);
  EXPECT_EQ(enter_with_state(pool, cache, "abcd", 2 * kSlots + 1), -1);
  EXPECT_EQ(enter_with_state(pool, cache, "abcd", 4 * kSlots), 11);
  EXPECT_EQ(matched_with_state(cache, "abcde"), std::pair(4, 11));
  // The least recently used one goes.
  EXPECT_EQ(enter_with_state(pool, cache, "xy", kSlots), 10);
  EXPECT_EQ(matched_with_state(cache, "abx"), std::pair(0, -1));
  EXPECT_EQ(matched_with_state(cache, "abcde"), std::pair(4, 11));
  cache.clear();
  EXPECT_EQ(enter_with_state(pool, cache, "abcd", kSlots), 10);
}

TEST(PrefixCache, SaltsNeverMeet) {
  BlockPool pool(20, kSlots);
  PrefixCache cache(pool, {}, 0);  // all hashes collide
  enter(pool, cache, "ab", "red");
  enter(pool, cache, "abc", "blue");
  EXPECT_EQ(num_matched(cache, tokens_of("abc"), "red"), 2);
  EXPECT_EQ(num_matched(cache, tokens_of("abc"), "blue"), 3);
  EXPECT_EQ(num_matched(cache, tokens_of("abc"), ""), 0);
  EXPECT_EQ(cache.size(), 5);
}

TEST(PrefixCache, EqualBlocksBecomeOne) {
  BlockPool pool(20, kSlots);
  PrefixCache cache(pool);
  BlockTable first(pool), second(pool);
  ASSERT_TRUE(first.grow(3 * kSlots));
  ASSERT_TRUE(second.grow(3 * kSlots));
  cache.insert(tokens_of("abc"), "", first);
  cache.insert(tokens_of("abd"), "", second);
  EXPECT_EQ(first.blocks()[0], second.blocks()[0]);
  EXPECT_EQ(first.blocks()[1], second.blocks()[1]);
  EXPECT_NE(first.blocks()[2], second.blocks()[2]);
  EXPECT_EQ(pool.free_blocks(), 20 - 4);
  first.clear();
  EXPECT_EQ(pool.free_blocks(), 20 - 3);  // "c" is idle now
  second.clear();
  EXPECT_EQ(pool.free_blocks(), 20);
  EXPECT_EQ(cache.size(), 4);
}

TEST(PrefixCache, IdleBlocksGoLeastRecentlyUsedAndFromTheEnd) {
  BlockPool pool(6, kSlots);
  PrefixCache cache(pool);
  enter(pool, cache, "abc");
  enter(pool, cache, "xyz");
  EXPECT_EQ(num_matched(cache, tokens_of("abc")), 3);  // now the most recent
  BlockTable table(pool);
  const auto matched = [&] {
    std::vector<int32_t> blocks;
    Tokens tokens = tokens_of("xyz");
    tokens.push_back(0);
    cache.match(tokens, "", blocks);
    return blocks.size();
  };
  ASSERT_TRUE(table.grow(kSlots));
  EXPECT_EQ(matched(), 2u);
  num_matched(cache, tokens_of("abc"));
  ASSERT_TRUE(table.grow(3 * kSlots));
  EXPECT_EQ(matched(), 0u);
  EXPECT_EQ(num_matched(cache, tokens_of("abc")), 3);
  ASSERT_TRUE(table.grow(5 * kSlots));
  EXPECT_EQ(num_matched(cache, tokens_of("abc")), 1);
  EXPECT_FALSE(table.grow(7 * kSlots));
  ASSERT_TRUE(table.grow(6 * kSlots));
  EXPECT_EQ(cache.size(), 0);
  EXPECT_EQ(pool.check_integrity(), "");
}

// Random sequences over a small pool, with the contents of every slot. Whatever is found holds
// what would have been computed; blocks in use are never given up; with and without collisions.
TEST(PrefixCache, WhatIsFoundIsWhatWouldBeComputed) {
  for (const uint64_t mask : {~uint64_t{0}, uint64_t{3}, uint64_t{0}}) {
    std::mt19937 random(7);
    BlockPool pool(30, kSlots);
    PrefixCache cache(pool, {}, mask);
    std::vector<uint64_t> memory(30 * kSlots, 0);
    struct Sequence {
      Tokens tokens;
      std::string salt;
      BlockTable table;
    };
    std::vector<Sequence> live;
    const auto key = [](const Sequence& s, size_t slot) {
      uint64_t hash = std::hash<std::string>()(s.salt);
      for (size_t i = 0; i <= slot; ++i) hash = (hash ^ s.tokens[i]) * 0x9E3779B97F4A7C15 + 1;
      return hash;
    };
    int hits = 0, refused = 0, given_up = 0;
    for (int step = 0; step < 1500; ++step) {
      if (random() % 2 && !live.empty()) {
        const size_t i = random() % live.size();
        if (random() % 2) cache.insert(live[i].tokens, live[i].salt, live[i].table);
        if (random() % 2) live.erase(live.begin() + i);
      } else {
        std::string words;
        for (int i = random() % 6; i > 0; --i) words += "ab"[random() % 2];
        Sequence s{tokens_of(words), random() % 2 ? "s" : "", BlockTable(pool)};
        for (int i = 1 + random() % kSlots; i > 0; --i) s.tokens.push_back(random() % 3);
        std::vector<int32_t> blocks;
        cache.match(s.tokens, s.salt, blocks);
        s.table.share(blocks);
        hits += blocks.size();
        const size_t known = s.table.capacity();
        ASSERT_LT(known, s.tokens.size());
        const int32_t before = cache.size();
        if (!s.table.grow(s.tokens.size())) {
          ++refused;
          continue;
        }
        given_up += cache.size() < before;
        for (size_t slot = 0; slot < s.tokens.size(); ++slot) {
          uint64_t& held = memory[s.table.blocks()[slot / kSlots] * kSlots + slot % kSlots];
          if (slot >= known) held = key(s, slot);
          ASSERT_EQ(held, key(s, slot)) << "slot " << slot << " of a cached prefix";
        }
        live.push_back(std::move(s));
      }
      ASSERT_EQ(pool.check_integrity(), "");
      ASSERT_EQ(cache.check_integrity(), "");
      int references = 0, held = cache.size();
      for (int block = 0; block < pool.num_blocks(); ++block) references += pool.references(block);
      for (const Sequence& s : live) held += s.table.num_blocks();
      ASSERT_EQ(references, held);
      for (const Sequence& s : live)
        if (step % 100 == 0) {
          for (size_t slot = 0; slot < s.tokens.size(); ++slot)
            ASSERT_EQ(memory[s.table.blocks()[slot / kSlots] * kSlots + slot % kSlots],
                      key(s, slot));
        }
    }
    EXPECT_GT(hits, 100);
    EXPECT_GT(refused, 20);
    EXPECT_GT(given_up, 20);
    live.clear();
    cache.clear();
    EXPECT_EQ(cache.size(), 0);
    EXPECT_EQ(pool.free_blocks(), 30);
    EXPECT_EQ(pool.check_integrity(), "");
  }
}

}  // namespace
}  // namespace invar
