// How single rows are shared out: whatever their lengths, every split once, every worker as much.
#include "kernels/attention_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernel_check.h"

namespace invar {
namespace {

struct Piece {
  int worker, row, unit, begin, end;
};

struct End {
  int row;
  AttentionCuts::Place place;
};

End find(const AttentionCuts& cuts, const std::vector<int>& lengths, int at) {
  int before = 0;
  for (int row = 0; row < cuts.rows; before += lengths[row++])
    if (at < cuts.row_at(row + 1, before + lengths[row]))
      return {row, cuts.place(at - cuts.row_at(row, before), lengths[row])};
  return {cuts.rows - 1, {cuts.units - 1, lengths.back()}};
}

AttentionCuts cuts_of(const std::vector<int>& lengths, int units, int workers) {
  AttentionCuts cuts{
      .rows = static_cast<int32_t>(lengths.size()), .units = units, .workers = workers};
  for (const int n : lengths) {
    cuts.splits += n;
    cuts.longest = std::max(cuts.longest, n);
  }
  return cuts;
}

std::vector<Piece> pieces_of(const AttentionCuts& cuts, const std::vector<int>& lengths) {
  std::vector<Piece> pieces;
  for (int w = 0; w < cuts.workers; ++w) {
    const End from = find(cuts, lengths, cuts.stretch_at(w)),
              to = find(cuts, lengths, cuts.stretch_at(w + 1));
    for (int row = from.row; row <= to.row; ++row)
      for (int unit = 0; unit < cuts.units; ++unit) {
        const auto is_at = [&](const End& end) { return row == end.row && unit == end.place.unit; };
        if (row == from.row && unit < from.place.unit) continue;
        if (row == to.row && unit > to.place.unit) continue;
        const int begin = is_at(from) ? from.place.split : 0,
                  end = is_at(to) ? to.place.split : lengths[row];
        if (begin < end) pieces.push_back({w, row, unit, begin, end});
      }
  }
  return pieces;
}

// The splits of every unit, one after the other and none twice.
void expect_all(const AttentionCuts& cuts, const std::vector<int>& lengths,
                const std::vector<Piece>& pieces) {
  size_t i = 0;
  for (int row = 0; row < cuts.rows; ++row)
    for (int unit = 0; unit < cuts.units; ++unit)
      for (int split = 0; split < lengths[row]; split = pieces[i++].end) {
        ASSERT_LT(i, pieces.size());
        ASSERT_EQ(pieces[i].row, row);
        ASSERT_EQ(pieces[i].unit, unit);
        ASSERT_EQ(pieces[i].begin, split);
      }
  EXPECT_EQ(i, pieces.size());
}

int most_work(const AttentionCuts& cuts, const std::vector<Piece>& pieces) {
  std::vector<int> work(cuts.workers);
  for (const Piece& p : pieces) work[p.worker] += p.end - p.begin + cuts.piece_cost;
  return *std::ranges::max_element(work);
}

TEST(AttentionCuts, AnyMixtureIsSharedOutEvenly) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> lengths(1 + random.below(150));
    for (int& n : lengths) n = 1 + random.below(random.below(8) ? 12 : 400);
    AttentionCuts cuts = cuts_of(lengths, 1 + random.below(9), 1 + random.below(400));
    cuts.piece_cost = random.below(3);
    cuts.fewest = 1 + random.below(3);
    const std::vector<Piece> pieces = pieces_of(cuts, lengths);
    expect_all(cuts, lengths, pieces);
    // One share, and what a cut adds: the cost of the second piece, and a bound moved to a unit's
    // end on either side.
    EXPECT_LE(most_work(cuts, pieces),
              cuts.end() / cuts.workers + 1 + 2 * cuts.piece_cost + 2 * (cuts.fewest - 1));
  }
}

TEST(AttentionCuts, UnitsStayWholeWhereWorkersHaveAsManyOfTheSameLength) {
  const auto keeps = [](std::vector<int> lengths, int workers) {
    AttentionCuts cuts = cuts_of(lengths, 8, workers);
    cuts.cut_cost = 5;
    return cuts.keeps_units();
  };
  EXPECT_TRUE(keeps(std::vector<int>(16, 64), 132));   // one each
  EXPECT_TRUE(keeps(std::vector<int>(64, 64), 264));   // two
  EXPECT_FALSE(keeps(std::vector<int>(24, 64), 132));  // two or one
  std::vector<int> lengths(64, 16);
  EXPECT_TRUE(keeps(lengths, 264));
  lengths[5] = 17;  // an answer is a token longer than the others
  EXPECT_TRUE(keeps(lengths, 264));
  lengths[5] = 160;
  EXPECT_FALSE(keeps(lengths, 264));
  AttentionCuts cuts = cuts_of(lengths, 8, 264);
  cuts.may_cut = false;  // there is no memory for parts
  EXPECT_TRUE(cuts.keeps_units());
}

TEST(AttentionCuts, AUnitIsCutIntoPiecesAsLongAsEachOther) {
  for (int splits = 1; splits < 100; ++splits)
    for (int longest = 1; longest < 110; ++longest) {
      const int pieces = invar::pieces_of(splits, longest);
      EXPECT_EQ(piece_at(0, splits, pieces), 0);
      EXPECT_EQ(piece_at(pieces, splits, pieces), splits);
      for (int i = 0; i < pieces; ++i) {
        const int length = piece_at(i + 1, splits, pieces) - piece_at(i, splits, pieces);
        EXPECT_GE(length, splits / pieces);
        EXPECT_LE(length, longest);
      }
    }
}

}  // namespace
}  // namespace invar
