#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstring>

namespace invar::cpu {

namespace {

// Queries [begin, end) of a run of rows with one block table, for one key/value head. They are
// numbered row by row, and within a row by head.
struct Task {
  int64_t row;  // first of the run
  int32_t group;
  int64_t begin, end;
};

// Slots that some query of a task sees lie from lowest to highest.
struct Span {
  int64_t lowest, highest;
  int64_t leaves() const { return highest / 32 - lowest / 32 + 1; }
};

Span span_of(const PartialAttentionParams& partial, const Task& task) {
  const AttentionParams& p = partial.of;
  const int64_t heads = p.heads / p.kv.kv_heads;
  Span span = {INT64_MAX, 0};
  for (int64_t t = task.row + task.begin / heads; t <= task.row + (task.end - 1) / heads; ++t) {
    span.lowest = std::min<int64_t>(span.lowest, first_slot(partial, t));
    span.highest = std::max<int64_t>(span.highest, p.positions[t]);
  }
  return span;
}

// Every task, those that share keys next to each other.
template <typename Use>
void for_each_task(const AttentionParams& p, int tile_queries, Use use) {
  const int64_t heads = p.heads / p.kv.kv_heads;
  for (int64_t row = 0; row < p.rows;) {
    int64_t end = row + 1;
    while (end < p.rows && p.table_of[end] == p.table_of[row]) ++end;
    const int64_t queries = (end - row) * heads;
    for (int32_t g = 0; g < p.kv.kv_heads; ++g)
      for (int64_t q = 0; q < queries; q += tile_queries)
        use(Task{row, g, q, std::min(queries, q + tile_queries)});
    row = end;
  }
}

void clear_pad(const AttentionParams& p, int64_t row) {
  const int64_t width = int64_t{p.heads} * p.kv.head_dim, size = size_of(p.out.type);
  char* out = static_cast<char*>(p.out.data) + (row * p.out.stride + width) * size;
  std::memset(out, 0, static_cast<size_t>((round_up(width, kLeafPad) - width) * size));
}

void fill_tile(const PartialAttentionParams& partial, const Task& task, const Span& span,
               AttentionTile& tile) {
  const AttentionParams& p = partial.of;
  const KvLayer& kv = p.kv;
  const int64_t heads = p.heads / kv.kv_heads, e = kv.head_dim, padded = round_up(e, 32);
  const int64_t words = size_of(kv.type) / size_of(DType::bf16);  // of an element
  tile.queries = static_cast<int32_t>(task.end - task.begin);
  for (int i = 0; i < tile.queries; ++i) {
    const int64_t row = task.row + (task.begin + i) / heads;
    const int64_t head = task.group * heads + (task.begin + i) % heads;
    tile.q[i] = p.q + (row * p.heads + head) * padded * words;
    tile.first[i] = first_slot(partial, row);
    tile.last[i] = p.positions[row];
    tile.out[i] =
        static_cast<char*>(p.out.data) + (row * p.out.stride + head * e) * size_of(p.out.type);
    tile.stat[i] = row * p.heads + head;
    tile.sinks[i] = p.sinks ? p.sinks + head : nullptr;
    if (head == p.heads - 1) clear_pad(p, row);
  }
  tile.max = partial.max;
  tile.sum = partial.sum;
  tile.lowest = static_cast<int32_t>(span.lowest);
  tile.highest = static_cast<int32_t>(span.highest);
  tile.out_is_bf16 = p.out.type == DType::bf16;
  tile.table = p.tables[p.table_of[task.row]];
  tile.block_size = kv.block_size;
  tile.head_dim = kv.head_dim;
  tile.keys = kv.keys + kv.key_index(0, task.group, 0, 0) * words;
  tile.values = kv.values + kv.value_index(0, task.group, 0, 0) * words;
  tile.key_block_stride = kv.kv_heads * kv.key_block() * words;
  tile.value_block_stride = kv.kv_heads * kv.value_block() * words;
  tile.key_words = static_cast<int32_t>(padded * words);
  tile.value_words = static_cast<int32_t>(round_up(e, 16) * words);
  const ScoreScale scale = score_scale(p);
  tile.scale = scale.factor;
  tile.inner = scale.inner;
}

}  // namespace

void attention(const AttendFunctions& functions, const PartialAttentionParams& p,
               const Execution& on) {
  const bool is_f32 = p.of.kv.is_f32();
  const Attend attend = is_f32 ? functions.f32 : functions.bf16;
  const int tile_queries = is_f32 ? kVectorTileQueries : functions.tile_queries;
  // The leaves that a task reads are what it costs, near enough; each share gets as many.
  int64_t total = 0, before = 0;
  for_each_task(p.of, tile_queries, [&](const Task& task) { total += span_of(p, task).leaves(); });
  AttentionTile tiles[2];
  AttentionTile* ready = nullptr;  // waits for its successor to be known
  int used = 0;
  for_each_task(p.of, tile_queries, [&](const Task& task) {
    const Span span = span_of(p, task);
    const int64_t owner = before * on.share.count / total;
    before += span.leaves();
    if (owner != on.share.index) return;
    AttentionTile& tile = tiles[used++ % 2];
    fill_tile(p, task, span, tile);
    if (ready) attend(*ready, &tile);
    ready = &tile;
  });
  if (ready) attend(*ready, nullptr);
}

}  // namespace invar::cpu
