#include "train/rl/packing.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "train/row_packer.h"

namespace invar::rl {

PackedAnswers pack_answers(std::span<const std::vector<int32_t>* const> prompts,
                           std::span<const std::vector<int32_t>* const> answers, int context,
                           int groups, int32_t pad) {
  const auto size_of = [&](size_t i) { return prompts[i]->size() + answers[i]->size(); };
  std::vector<size_t> order(answers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), size_of);
  PackedAnswers packed;
  packed.places.resize(answers.size());
  const auto limit = static_cast<size_t>(context);
  for (const size_t i : order) {
    CHECK(size_of(i) <= limit, "answers fit into rows");
    const auto has_room = [&](const PackedRow& row) {
      return row.tokens.size() + size_of(i) <= limit && row.begins.size() < kMaxSequencesPerRow - 1;
    };
    auto row = std::ranges::find_if(packed.rows, has_room);
    if (row == packed.rows.end()) row = packed.rows.insert(row, PackedRow{});
    packed.places[i] = {static_cast<size_t>(row - packed.rows.begin()),
                        static_cast<int32_t>(row->tokens.size() + prompts[i]->size()) - 1,
                        static_cast<int32_t>(answers[i]->size())};
    Document document{*prompts[i], std::vector<uint8_t>(prompts[i]->size(), 0)};
    document.tokens.insert(document.tokens.end(), answers[i]->begin(), answers[i]->end());
    document.wanted.resize(document.tokens.size(), 1);
    append_sequence(*row, document);
  }
  while (packed.rows.size() % static_cast<size_t>(groups) != 0) packed.rows.emplace_back();
  for (PackedRow& row : packed.rows) fill_row(row, context, pad);
  return packed;
}

}  // namespace invar::rl
