// Products of up to 32 rows with blocks on AMX, order `portable`. Leaves are unpacked in registers
// and go by way of L1 into tiles, which meet the rows where they lie: for so few rows the unpacking
// takes longer than the products.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/amx_strip_inl.h"
#include "kernels/cpu/vec16_avx512.h"
// after it
#include "kernels/cpu/byte_floats_vnni.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"

namespace invar::cpu {

namespace {

constexpr int kUnpackedRows = 8;

}  // namespace

}  // namespace invar::cpu

// after it
#include "kernels/cpu/blocks_inl.h"

namespace invar::cpu {

namespace {

// Leaves that are unpacked one after the other while as many before them wait in L1 for their
// products: those hold up what the vector unit does, least where they follow each other. With more
// leaves they leave L1 where another thread shares it.
constexpr int64_t kAtOnce = 4;
// Panels that are fetched while so many before them are read.
constexpr int64_t kFetched = 4;
// Runs, or trees of them, that can wait for their neighbour in a tree of 8, and one more.
constexpr int kSums = 4;

// Weights as the right operand of products of R tiles of rows.
template <typename Leaf, int R>
struct AsPanel {
  using Of = Leaf;
  static void configure(int64_t rows) {
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = kTileRowBytes;
      config.rows[t] = 16;
    }
    // Registers of the first tile of rows, and of the second.
    config.rows[0] = config.rows[4] = static_cast<uint8_t>(smaller(rows, 16));
    config.rows[2] = config.rows[5] = static_cast<uint8_t>(larger(rows - 16, 1));
    tile_configure(config);
  }
  static void unpack(const BlockBytes& block, int64_t part, char* tile) {
    store_leaf(Leaf(block, part), tile);
  }
  static void begin() { zero_chains<R, 1>(); }
  static void multiply(const char* x, int64_t stride, const char* tile) {
    add_leaf<R, 1, RowsAre::read_again>(x, x + 16 * stride, stride, tile, tile);
  }
  // [row][16]
  static void end(float* sums) { store_chains<R, 1>(packed_chains(sums, R)); }
};

// A share of a product. While some leaves are unpacked those before them, perhaps of another run or
// panel, are multiplied.
template <typename Weights>
class FewRows {
 public:
  explicit FewRows(const PanelProduct& p) : p_(p), run_leaves_(p.leaves / p.split_k) {}

  void run() {
    Weights::configure(p_.rows);
    Piece before{};
    for (int64_t panel = 0; panel < p_.panels; ++panel)
      for (int r = 0; r < p_.split_k; ++r)
        for (int64_t i = 0; i < run_leaves_; i += kAtOnce) {
          const Piece piece{panel, r, i, smaller(kAtOnce, run_leaves_ - i)};
          unpack(piece);
          multiply(before);
          before = piece;
        }
    turn_ ^= 1;
    multiply(before);
    tile_release();
  }

 private:
  struct Piece {
    int64_t panel;
    int run;
    int64_t leaf, leaves;  // of the run
  };

  void unpack(const Piece& piece) {
    constexpr int64_t kBytes = kLeafBytes<typename Weights::Of>;
    constexpr int64_t kLeaves = kLeavesOf<typename Weights::Of>;  // of a block
    const char* w = static_cast<const char*>(p_.w) + piece.panel * p_.panel_bytes;
    int64_t leaf = piece.run * run_leaves_ + piece.leaf;
    const int64_t in_group = piece.panel % kFetched, group = piece.panel - in_group;
    const bool is_last = group + kFetched >= p_.panels;
    FetchedNext next{
        .first = is_last ? static_cast<const char*>(p_.next)
                         : static_cast<const char*>(p_.w) + (group + kFetched) * p_.panel_bytes,
        .bytes = kFetched * p_.panel_bytes,
        .done = in_group * p_.panel_bytes + leaf * kBytes};
    turn_ ^= 1;
    for (int64_t i = 0; i < piece.leaves; ++i, ++leaf) {
      fetch(next, kBytes);
      Weights::unpack(BlockBytes(Weights::Of::kType, w, w + p_.scales, leaf / kLeaves),
                      leaf % kLeaves, room_[turn_][i]);
    }
  }

  // Multiplies the piece that was unpacked before the last.
  void multiply(const Piece& piece) {
    if (piece.leaves == 0) return;
    if (piece.leaf == 0) Weights::begin();
    const char* x =
        static_cast<const char*>(p_.x) + (piece.run * run_leaves_ + piece.leaf) * kTileRowBytes;
    for (int64_t i = 0; i < piece.leaves; ++i, x += kTileRowBytes)
      Weights::multiply(x, p_.x_stride, room_[turn_ ^ 1][i]);
    if (piece.leaf + piece.leaves == run_leaves_) end_run(piece);
  }

  void end_run(const Piece& piece) {
    Weights::end(sums_[depth_]);
    // (s0 + s1) + (s2 + s3) ...: a run with an odd number meets the tree to its left.
    for (int odd = piece.run; odd & 1; odd >>= 1, --depth_)
      for (int64_t i = 0; i < p_.rows * 16; i += 16)
        store(sums_[depth_ - 1] + i, load(sums_[depth_ - 1] + i) + load(sums_[depth_] + i));
    ++depth_;
    // The sums of a gate wait for those of their up.
    if (piece.run + 1 < p_.split_k || (p_.out && piece.panel % 2 == 0)) return;
    depth_ = 0;
    for (int64_t row = 0; row < p_.rows; ++row) {
      const Vec16 dots = load(sums_[0] + row * 16);
      if (p_.out)
        write_gated(p_, row, piece.panel - 1, dots, load(sums_[1] + row * 16));
      else
        write_plain(p_, row, piece.panel, dots);
    }
  }

  const PanelProduct& p_;
  const int64_t run_leaves_;
  int turn_ = 0, depth_ = 0;
  alignas(64) char room_[2][kAtOnce][kTileBytes];
  alignas(64) float sums_[kSums][kRowsOfBlocksAmx * 16];
};

}  // namespace

void product_of_blocks_amx(const PanelProduct& p) {
  with_leaf_of(p.stored, [&]<typename Leaf>() {
    p.rows > 16 ? FewRows<AsPanel<Leaf, 2>>(p).run() : FewRows<AsPanel<Leaf, 1>>(p).run();
  });
}

}  // namespace invar::cpu
