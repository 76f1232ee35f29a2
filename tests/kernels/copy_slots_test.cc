// Copies of slots between blocks of keys and values, against the reference.
#include <vector>

#include "kernel_check.h"
#include "kernels/reference/reference.h"

namespace invar {
namespace {

class CopySlotsTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Sets, CopySlotsTest, testing::ValuesIn(tested_sets()), set_name);

constexpr int kBlocks = 4, kHeads = 3;

// Keys and values of a layer: every element that a row has, zero beside them.
struct Cache {
  Cache(int block_size, int head_dim, CacheLayout layout, DType type)
      : kv{.block_size = block_size,
           .kv_heads = kHeads,
           .head_dim = head_dim,
           .layout = layout,
           .type = type,
           .index_dim = 32},
        index(static_cast<size_t>(kBlocks * kv.index_block())),
        keys(static_cast<size_t>(kBlocks * kHeads * kv.key_block() * size_of(type) / 2)),
        values(static_cast<size_t>(kBlocks * kHeads * kv.value_block() * size_of(type) / 2)) {
    point();
    Random random(1);
    for (int block = 0; block < kBlocks; ++block)
      for (int head = 0; head < kHeads; ++head)
        for (int slot = 0; slot < block_size; ++slot)
          for (int e = 0; e < head_dim; ++e) {
            put(kv.keys, kv.key_index(block, head, slot, e), random.uniform());
            put(kv.values, kv.value_index(block, head, slot, e), random.uniform());
          }
    for (bf16_t& x : index) x = f32_to_bf16(random.uniform());
  }
  Cache(const Cache& other)
      : kv(other.kv), index(other.index), keys(other.keys), values(other.values) {
    point();
  }

  void put(bf16_t* of, int64_t at, float x) const {
    if (kv.is_f32())
      reinterpret_cast<float*>(of)[at] = x;
    else
      of[at] = f32_to_bf16(x);
  }
  void point() {
    kv.keys = keys.data();
    kv.values = values.data();
    kv.index_keys = index.data();
  }
  // Index keys of the slots that copies name, and all others as they are here.
  std::vector<bf16_t> index_after(std::span<const SlotCopy> copies) const {
    std::vector<bf16_t> after = index;
    for (const SlotCopy& c : copies)
      for (int64_t slot = c.begin; slot < c.end; ++slot)
        for (int64_t e = 0; e < kv.index_dim; ++e)
          after[static_cast<size_t>(kv.index_at(c.to, slot, e))] =
              index[static_cast<size_t>(kv.index_at(c.from, slot, e))];
    return after;
  }
  bool operator==(const Cache& other) const {
    return index == other.index &&
           std::memcmp(keys.data(), other.keys.data(), keys.size() * sizeof(bf16_t)) == 0 &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(bf16_t)) == 0;
  }

  KvLayer kv;
  std::vector<bf16_t> index, keys, values;
};

TEST_P(CopySlotsTest, AsTheReference) {
  struct Form {
    CacheLayout layout;
    DType type;
  };
  for (const auto [layout, type] :
       {Form{CacheLayout::panels, DType::bf16}, Form{CacheLayout::rows, DType::bf16},
        Form{CacheLayout::panels, DType::f32}})
    for (const int block_size : {32, 128})
      for (const int head_dim : {8, 20, 64, 80}) {
        const Cache before(block_size, head_dim, layout, type);
        for (const int begin : {0, 1, 6, 16, 31})
          for (const int end : {begin, 1, 9, 16, 31, 32, block_size - 1, block_size}) {
            if (end < begin) continue;
            const SlotCopy copies[] = {{0, 2, begin, end}, {1, 3, 0, end}};
            Cache expected(before), found(before);
            reference::copy_slots({expected.kv, copies, 2}, Execution{});
            run_in_parts(2, [&](const Execution& on) {
              kernels().copy_slots({found.kv, copies, 2}, on);
            });
            ASSERT_TRUE(found == expected)
                << block_size << " slots of " << head_dim << ", " << begin << " to " << end;
            ASSERT_TRUE(end == 0 || !(found == before)) << "the comparison sees copies";
            ASSERT_EQ(found.index, before.index_after(copies));
            ASSERT_TRUE(end == 0 || found.index != before.index);
          }
      }
}

}  // namespace
}  // namespace invar
