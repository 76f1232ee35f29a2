// How the attention of single rows is shared out among a fixed number of workers, whatever the
// rows' lengths. Cuts change no bit: splits (numerics 4) are merged in ascending order, whoever
// computed them. All numbers are of one step, so that 32 bits hold any product of them.
//
// A unit is a row and one of its blocks of heads.
#pragma once

#include <cstdint>

namespace invar {

// Many units stand in a line: row after row, in a row unit after unit, in a unit split after split.
// A worker's stretch of it is the end of one unit, whole units, and the beginning of another: only
// units at its ends are cut. Or, where that is as fast, no unit is cut: a worker takes every
// `workers`-th.
struct AttentionCuts {
  int32_t rows = 0, splits = 0, longest = 0;  // of all rows, and splits of the longest
  int32_t units = 1;                          // of a row
  int32_t workers = 1;
  // The cost of a piece beside its splits, and the fewest splits that are worth one.
  int32_t piece_cost = 1, fewest = 1;
  int32_t cut_cost = 0;  // in splits, of a stretch whose ends are cut
  bool may_cut = true;   // else units stay whole

  constexpr bool keeps_units() const {
    const int32_t turns = (rows * units + workers - 1) / workers;
    return !may_cut || turns * (longest + piece_cost) <= end() / workers + cut_cost;
  }

  // Where a row begins that has so many rows and splits before it, and where a stretch does.
  constexpr int32_t row_at(int32_t rows_before, int32_t splits_before) const {
    return units * (splits_before + piece_cost * rows_before);
  }
  constexpr int32_t end() const { return row_at(rows, splits); }
  constexpr int32_t stretch_at(int32_t worker) const {
    const int32_t each = end() / workers, more = end() % workers;
    return worker * each + (worker < more ? worker : more);
  }

  // A place so far behind the beginning of a row: in which unit, and before which of its splits;
  // all of them: behind the last one.
  struct Place {
    int32_t unit, split;
  };
  constexpr Place place(int32_t behind, int32_t of_row) const {
    const int32_t cost = of_row + piece_cost, unit = behind / cost, within = behind % cost,
                  split = within - piece_cost;
    if (split < fewest) return {unit, 0};
    return {unit, of_row - split < fewest ? of_row : split};
  }
};

// Few units: every worker has a piece of one unit at the most, and no piece has more than `longest`
// splits, the fewest for which there are workers enough.
constexpr int32_t pieces_of(int32_t splits, int32_t longest) {
  return (splits + longest - 1) / longest;
}
// Where piece `number` of a unit begins.
constexpr int32_t piece_at(int32_t number, int32_t splits, int32_t pieces) {
  return number * (splits / pieces) + (number < splits % pieces ? number : splits % pieces);
}

}  // namespace invar
