// The loops of a product of blocks as integers (numerics 2.3) on the vector sets. Included after a
// vec16 header, vec16_math.h, product_end_inl.h.
//
// Some rows become integers, once for all panels of a share. A leaf of a panel is unpacked to
// registers, where all of these rows meet it; their chains stay in L1 meanwhile.
#pragma once

#include "kernels/cpu/block_parts_inl.h"
#include "kernels/cpu/row_leaf.h"
#include "kernels/cpu/run_trees_inl.h"

namespace invar::cpu {

namespace {

// The sums that a set adds to the chains of some rows: leaves of a run of a panel.
struct LeavesOfPanel {
  const char* values;  // of the panel
  const char* scales;
  int64_t first, end;
  const RowLeaf* x;  // [leaf][row]
  int64_t rows;
  float* chains;     // [row][16], in an order of outputs that is the set's
  const char* next;  // or null: what is read after the panel, fetched in as many bytes a leaf
  int64_t leaf_bytes;
};

inline void fetch_next(const LeavesOfPanel& t, int64_t leaf) {
  if (!t.next) return;
  for (int64_t at = leaf * t.leaf_bytes / kLine; at < (leaf + 1) * t.leaf_bytes / kLine; ++at)
    __builtin_prefetch(t.next + at * kLine, 0, 2);
}
// Calls use(leaf, its parts) for each of them. In whole blocks a leaf's number is a constant.
template <typename Parts, typename Use>
[[gnu::always_inline]] inline void for_each_leaf(const LeavesOfPanel& t, const Use& use) {
  constexpr int64_t kLeaves = Parts::kLeaves;
  for (int64_t i = t.first; i < t.end;) {
    const int64_t first = i / kLeaves * kLeaves;
    const typename Parts::Block block(BlockBytes(Parts::kType, t.values, t.scales, i / kLeaves));
    if (i == first && first + kLeaves <= t.end) {
#pragma GCC unroll 8
      for (int64_t leaf = 0; leaf < kLeaves; ++leaf, ++i) {
        fetch_next(t, i);
        use(i, Parts(block, leaf));
        asm volatile(
            "" ::
                : "memory");  // what is read for several leaves would not fit into registers
      }
    } else {
      for (const int64_t end = smaller(first + kLeaves, t.end); i < end; ++i) {
        fetch_next(t, i);
        use(i, Parts(block, i - first));
      }
    }
  }
}

// Set::add<Parts>(LeavesOfPanel)
// Set::in_order(chains, vectors)  brings outputs into their order
// Set::zero_of<Parts>()           what the set's integers of weights have too much
// Set::begin<Parts>(), end()      around a share
template <typename Set, typename Parts>
class BlockProduct {
 public:
  explicit BlockProduct(const PanelProduct& p)
      : p_(p), run_leaves_(p.leaves / p.split_k), panels_(p.out ? 2 : 1) {}

  void run() {
    Set::template begin<Parts>();
    const int64_t most = smaller(kRows, kRoom / p_.leaves), tiles = ceil_div(p_.rows, most);
    for (int64_t t = 0; t < tiles; ++t) {
      first_row_ = p_.rows * t / tiles;
      rows_ = p_.rows * (t + 1) / tiles - first_row_;
      quantise_leaves_avx2(static_cast<const char*>(p_.x) + first_row_ * p_.x_stride, p_.x_stride,
                           rows_, p_.leaves, Parts::kParts, Set::template zero_of<Parts>(), x_);
      for (int64_t panel = 0; panel < p_.panels; panel += panels_) {
        dots(panel, t == 0);
        write(panel);
      }
    }
    Set::end();
  }

 private:
  void dots(int64_t panel, bool fetches) {
    trees_.start();
    for (int r = 0; r < p_.split_k; ++r) {
      float* chains = trees_.next();
      for (int64_t i = 0; i < panels_ * rows_ * 16; i += 16) store(chains + i, splat(0));
      for (int64_t q = 0; q < panels_; ++q) add_run(panel + q, r, fetches, chains + q * rows_ * 16);
      Set::in_order(chains, panels_ * rows_);
      trees_.add(r, panels_ * rows_);
    }
  }

  void add_run(int64_t panel, int r, bool fetches, float* chains) {
    const char* w = static_cast<const char*>(p_.w) + panel * p_.panel_bytes;
    const char* next =
        panel + 1 < p_.panels ? w + p_.panel_bytes : static_cast<const char*>(p_.next);
    Set::template add<Parts>({.values = w,
                              .scales = w + p_.scales,
                              .first = r * run_leaves_,
                              .end = (r + 1) * run_leaves_,
                              .x = x_,
                              .rows = rows_,
                              .chains = chains,
                              .next = fetches ? next : nullptr,
                              .leaf_bytes = p_.panel_bytes / p_.leaves});
  }

  void write(int64_t panel) {
    const float* dots = trees_.dots();
    for (int64_t t = 0; t < rows_; ++t, dots += 16)
      if (p_.out)
        write_gated(p_, first_row_ + t, panel, load(dots), load(dots + rows_ * 16));
      else
        write_plain(p_, first_row_ + t, panel, load(dots));
  }

  // Rows whose chains are in L1; leaves of them whose integers are in L2.
  static constexpr int64_t kRows = 96, kRoom = kMostBlockLeaves;

  const PanelProduct& p_;
  const int64_t run_leaves_, panels_;
  int64_t first_row_ = 0, rows_ = 0;
  RowLeaf x_[kRoom];
  RunTrees<kRows, 2> trees_;
};

template <typename Set>
inline void block_product(const PanelProduct& p) {
  with_parts_of(p.stored, [&]<typename Parts>() { BlockProduct<Set, Parts>(p).run(); });
}

}  // namespace

}  // namespace invar::cpu
