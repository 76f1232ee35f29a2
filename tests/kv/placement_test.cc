#include "kv/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/count_allocations.h"

namespace invar {
namespace {

// A key is a hash of the tokens up to and including its slot, so that a wrong slot, a stale one
// and one of another branch all differ.
using Key = uint64_t;
Key next_key(Key before, int32_t token) {
  return (before ^ static_cast<Key>(token + 1)) * 0x9E3779B97F4A7C15u + 1;
}

struct World {
  int block_size = 0;
  std::vector<Key> memory;  // [block][slot]
  std::vector<BatchRow> rows;
  std::vector<BatchSequence> sequences;
  std::vector<int32_t> scratch;
  std::vector<Key> row_key;                // of each row
  std::vector<std::vector<Key>> computed;  // per sequence: the keys already in its blocks

  Key& at(const int32_t* table, int slot) {
    return memory[table[slot / block_size] * block_size + slot % block_size];
  }
  // The keys that row t must read at slots 0 .. its position.
  std::vector<Key> history(int t) const {
    std::vector<Key> keys;
    const BatchRow* row = &rows[t];
    while (row) {
      keys.push_back(row_key[row - rows.data()]);
      const BatchRow* before = nullptr;
      if (row->parent >= 0)
        before = &rows[row->parent];
      else
        for (const BatchRow& r : rows)
          if (r.sequence == row->sequence && r.parent < 0 && r.position + 1 == row->position)
            before = &r;
      if (!before) {
        const auto& old = computed[row->sequence];
        keys.insert(keys.end(), old.rend() - row->position, old.rend());
      }
      row = before;
    }
    std::reverse(keys.begin(), keys.end());
    return keys;
  }
};

// Random sequences with random trunks and, for most, random trees; in depth-first order or shuffled
// so that parents still come first.
World random_world(std::mt19937& random, int block_size) {
  World w;
  w.block_size = block_size;
  const int num_sequences = 1 + random() % 4;
  int32_t next_block = 0;
  for (int s = 0; s < num_sequences; ++s) {
    const int old = random() % (3 * block_size);
    const int trunk = 1 + random() % (random() % 3 ? 2 : 2 * block_size);
    std::vector<Key> keys;
    Key key = s;
    for (int i = 0; i < old; ++i) keys.push_back(key = next_key(key, random() % 100));
    w.computed.push_back(keys);
    const int first = static_cast<int>(w.rows.size());
    for (int i = 0; i < trunk; ++i) {
      const int32_t token = random() % 100;
      w.rows.push_back({token, old + i, s, -1});
      w.row_key.push_back(key = next_key(key, token));
    }
    const int drafts = random() % 4 ? random() % 24 : 0;
    std::vector<int> depth(w.rows.size(), 0);
    for (int d = 0; d < drafts; ++d) {
      // Most often below the last trunk row or another draft.
      const int last_trunk = first + trunk - 1;
      const int size = static_cast<int>(w.rows.size());
      int parent = random() % 8 ? last_trunk + random() % (size - last_trunk)
                                : first + random() % (size - first);
      if (depth[parent] >= 8) parent = last_trunk;
      const int32_t token = random() % 100;
      depth.push_back(parent <= last_trunk ? 1 : depth[parent] + 1);
      w.rows.push_back({token, w.rows[parent].position + 1, s, parent});
      w.row_key.push_back(next_key(w.row_key[parent], token));
    }
    BatchSequence sequence;
    const int spare = random() % 2;  // blocks may reach past the trunk
    for (int i = 0; i < (old + trunk + block_size - 1) / block_size + spare; ++i)
      sequence.blocks.push_back(next_block++);
    w.sequences.push_back(sequence);
  }
  const int needed = scratch_blocks_needed(w.rows, block_size);
  for (int i = 0; i < needed; ++i) w.scratch.push_back(next_block++);
  // Blocks lie anywhere.
  std::vector<int32_t> name(next_block);
  for (int i = 0; i < next_block; ++i) name[i] = i;
  std::shuffle(name.begin(), name.end(), random);
  for (auto& s : w.sequences)
    for (auto& block : s.blocks) block = name[block];
  for (auto& block : w.scratch) block = name[block];

  w.memory.resize(next_block * block_size);
  for (Key& key : w.memory) key = random();  // stale
  for (int s = 0; s < num_sequences; ++s)
    for (size_t i = 0; i < w.computed[s].size(); ++i)
      w.at(w.sequences[s].blocks.data(), i) = w.computed[s][i];
  return w;
}

void copy(World& w, std::span<const SlotCopy> copies) {
  for (const SlotCopy& c : copies)
    for (int i = c.begin; i < c.end; ++i)
      w.memory[c.to * w.block_size + i] = w.memory[c.from * w.block_size + i];
}

// What the forward does with the tables, as far as slots are concerned.
void run(World& w, const Placement& p) {
  copy(w, p.copies());
  for (size_t t = 0; t < w.rows.size(); ++t)
    for (int i = p.write_begin()[t]; i < p.write_begin()[t + 1]; ++i)
      w.memory[p.write_block()[i] * w.block_size + p.write_slot()[i]] = w.row_key[t];
}

int wrong_slots(World& w, int t, const int32_t* table) {
  const std::vector<Key> expected = w.history(t);
  EXPECT_EQ(std::ssize(expected), w.rows[t].position + 1);
  int wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += w.at(table, i) != expected[i];
  return wrong;
}

TEST(Placement, EveryRowReadsItsOwnPathByPlace) {
  std::mt19937 random(3);
  int trees = 0, wrong_without_tails = 0;
  Placement p;
  for (int round = 0; round < 250; ++round) {
    World w = random_world(random, 32 << round % 3);
    World flat = w;
    p.build(w.rows, w.sequences, w.scratch, w.block_size);
    run(w, p);
    for (size_t t = 0; t < w.rows.size(); ++t) {
      ASSERT_EQ(wrong_slots(w, t, p.table(t)), 0) << "row " << t << " of round " << round;
      ASSERT_EQ(&p.table_blocks()[p.table_begin()[p.table_of()[t]]], p.table(t));
      // Rows of one table stand together.
      const int step = t == 0 ? 0 : p.table_of()[t] - p.table_of()[t - 1];
      ASSERT_TRUE(step == 0 || step == 1);
    }
    // No block is both read and written by the copies, and only scratch is a target.
    for (const SlotCopy& c : p.copies()) {
      EXPECT_NE(std::find(w.scratch.begin(), w.scratch.end(), c.to), w.scratch.end());
      EXPECT_EQ(std::find(w.scratch.begin(), w.scratch.end(), c.from), w.scratch.end());
      EXPECT_TRUE(0 <= c.begin && c.begin < c.end && c.end < w.block_size);
    }
    // No two writes meet.
    std::vector<int64_t> slots;
    for (size_t i = 0; i < p.write_block().size(); ++i)
      slots.push_back(int64_t{p.write_block()[i]} * w.block_size + p.write_slot()[i]);
    std::sort(slots.begin(), slots.end());
    EXPECT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end());
    trees += !w.scratch.empty();

    // The negative: with drafts in the sequence's own blocks, siblings overwrite each other.
    for (auto& s : flat.sequences) s.blocks.resize(s.blocks.size() + 8, s.blocks.back());
    for (size_t t = 0; t < flat.rows.size(); ++t)
      flat.at(flat.sequences[flat.rows[t].sequence].blocks.data(), flat.rows[t].position) =
          flat.row_key[t];
    for (size_t t = 0; t < flat.rows.size(); ++t)
      wrong_without_tails +=
          wrong_slots(flat, t, flat.sequences[flat.rows[t].sequence].blocks.data()) > 0;
  }
  EXPECT_GT(trees, 120);
  EXPECT_GT(wrong_without_tails, 400);
}

TEST(Placement, AcceptLeavesBlocksAsPlainDecodingWould) {
  std::mt19937 random(4);
  Placement p;
  int accepted_drafts = 0;
  for (int round = 0; round < 250; ++round) {
    World w = random_world(random, 32 << round % 3);
    p.build(w.rows, w.sequences, w.scratch, w.block_size);
    run(w, p);
    std::vector<int32_t> last(w.sequences.size());  // per sequence: the accepted row
    std::vector<SlotCopy> copies;
    int32_t next_block = static_cast<int32_t>(w.memory.size()) / w.block_size;
    for (size_t s = 0; s < w.sequences.size(); ++s) {
      std::vector<int> candidates;
      int trunk_end = 0;
      for (size_t t = 0; t < w.rows.size(); ++t)
        if (w.rows[t].sequence == static_cast<int>(s)) {
          if (w.rows[t].parent < 0) trunk_end = t;
          candidates.push_back(t);
        }
      int choice = candidates[random() % candidates.size()];
      // A path that leaves the trunk before its end cannot be accepted: the trunk's tokens are
      // known.
      int root = choice;
      while (w.rows[root].parent >= 0) root = w.rows[root].parent;
      if (root != trunk_end) choice = trunk_end;
      last[s] = choice;
      accepted_drafts += w.rows[choice].parent >= 0;
      auto& blocks = w.sequences[s].blocks;
      while (std::ssize(blocks) * w.block_size <= w.rows[choice].position)
        blocks.push_back(next_block++);
    }
    w.memory.resize(next_block * w.block_size, 12345);
    for (size_t s = 0; s < w.sequences.size(); ++s)
      p.accept(w.rows, last[s], w.sequences[s].blocks, copies);
    copy(w, copies);
    for (size_t s = 0; s < w.sequences.size(); ++s)
      ASSERT_EQ(wrong_slots(w, last[s], w.sequences[s].blocks.data()), 0) << round;
  }
  EXPECT_GT(accepted_drafts, 100);
}

TEST(Placement, ChainsNeedNoScratch) {
  Placement p;
  const std::vector<BatchRow> rows = {
      {5, 31, 0, -1}, {6, 32, 0, -1}, {7, 33, 0, -1}, {9, 0, 1, -1}};
  const std::vector<BatchSequence> sequences = {{{4, 2}}, {{7}}};
  EXPECT_EQ(scratch_blocks_needed(rows, 32), 0);
  p.build(rows, sequences, {}, 32);
  EXPECT_TRUE(p.copies().empty());
  EXPECT_EQ(std::vector(p.write_block().begin(), p.write_block().end()),
            (std::vector<int32_t>{4, 2, 2, 7}));
  EXPECT_EQ(std::vector(p.write_slot().begin(), p.write_slot().end()),
            (std::vector<int32_t>{31, 0, 1, 0}));
  EXPECT_EQ(std::vector(p.table_of().begin(), p.table_of().end()),
            (std::vector<int32_t>{0, 0, 0, 1}));
}

TEST(Placement, TailsBeginAtTheBlockOfTheFirstDraft) {
  // Place 31 is known; drafts 32 and 33 open the next block, so nothing is copied.
  const std::vector<BatchRow> aligned = {
      {5, 31, 0, -1}, {6, 32, 0, 0}, {7, 33, 0, 1}, {8, 32, 0, 0}};
  EXPECT_EQ(scratch_blocks_needed(aligned, 32), 2);
  const std::vector<BatchSequence> sequences = {{{4}}};
  Placement p;
  p.build(aligned, sequences, std::vector<int32_t>{8, 9}, 32);
  EXPECT_TRUE(p.copies().empty());
  // Drafts 31 .. 33 cross a block: two blocks per path, 30 slots copied and the trunk's own
  // written.
  const std::vector<BatchRow> crossing = {
      {5, 30, 0, -1}, {6, 31, 0, 0}, {7, 32, 0, 1}, {8, 31, 0, 0}};
  EXPECT_EQ(scratch_blocks_needed(crossing, 32), 3);
  p.build(crossing, sequences, std::vector<int32_t>{7, 8, 9}, 32);
  EXPECT_EQ(std::vector(p.copies().begin(), p.copies().end()),
            (std::vector<SlotCopy>{{4, 7, 0, 31}, {4, 9, 0, 31}}));
}

TEST(Placement, MalformedTreesStop) {
  Placement p;
  const std::vector<BatchSequence> sequences = {{{0}}, {{1}}};
  const std::vector<int32_t> scratch = {2};
  const auto build = [&](std::vector<BatchRow> rows) { p.build(rows, sequences, scratch, 32); };
  EXPECT_DEATH(build({{0, 5, 0, -1}, {0, 7, 0, 0}}), "does not follow");
  EXPECT_DEATH(build({{0, 5, 0, -1}, {0, 6, 1, 0}}), "does not follow");
  EXPECT_DEATH(build({{0, 5, 0, 0}}), "parent after");
  EXPECT_DEATH(build({{0, 32, 0, -1}}), "beyond its sequence's blocks");
  EXPECT_DEATH(build({{0, 5, 0, -1}, {0, 6, 0, 0}, {0, 6, 0, 0}}), "too few scratch");
}

TEST(Placement, WarmBuildsDoNotAllocate) {
  std::mt19937 random(5);
  std::vector<World> worlds;
  for (int i = 0; i < 20; ++i) worlds.push_back(random_world(random, 32));
  Placement p;
  const auto build_all = [&] {
    const int64_t before = allocation_count();
    for (const World& w : worlds) p.build(w.rows, w.sequences, w.scratch, 32);
    return allocation_count() - before;
  };
  EXPECT_GT(build_all(), 0);
  EXPECT_EQ(build_all(), 0);
}

}  // namespace
}  // namespace invar
