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
class Tasks {
 public:
  Tasks(const AttentionParams& p, int tile_queries) : p_(p), tile_queries_(tile_queries) {
    start_run(0);
  }
  bool next(Task& task) {
    if (row_ == p_.rows) return false;
    task = {row_, group_, query_, std::min(queries_, query_ + tile_queries_)};
    query_ = task.end;
    if (query_ < queries_) return true;
    query_ = 0;
    if (++group_ == p_.kv.kv_heads) start_run(end_);
    return true;
  }

 private:
  void start_run(int64_t row) {
    row_ = end_ = row;
    group_ = 0;
    while (end_ < p_.rows && p_.table_of[end_] == p_.table_of[row]) ++end_;
    queries_ = (end_ - row) * (p_.heads / p_.kv.kv_heads);
  }

  const AttentionParams& p_;
  const int64_t tile_queries_;
  int64_t row_ = 0, end_ = 0;  // of the run
  int32_t group_ = 0;
  int64_t query_ = 0, queries_ = 0;
};

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

// The tiles of one share. The leaves that a task reads are what it costs, near enough; each share
// gets as many.
class ShareOfTiles {
 public:
  ShareOfTiles(const PartialAttentionParams& p, int tile_queries, Part share)
      : p_(p), share_(share), tasks_(p.of, tile_queries) {
    Tasks all(p.of, tile_queries);
    for (Task task; all.next(task);) total_ += span_of(p, task).leaves();
  }
  const AttentionTile* next() {
    for (Task task; tasks_.next(task);) {
      const Span span = span_of(p_, task);
      const int64_t owner = before_ * share_.count / total_;
      before_ += span.leaves();
      if (owner != share_.index) continue;
      const AttentionTile* before = used_ > 0 ? &tiles_[(used_ - 1) % TileSource::kKept] : nullptr;
      AttentionTile& tile = tiles_[used_++ % TileSource::kKept];
      fill_tile(p_, task, span, tile);
      tile.near = before ? leaves_read(*before, tile) : 0;
      return &tile;
    }
    return nullptr;
  }

 private:
  // Whole leaves of `tile` that the one before it has read, where they fit into a part of the
  // cache.
  int32_t leaves_read(const AttentionTile& before, const AttentionTile& tile) const {
    constexpr int64_t kNear = 512 << 10;  // bytes
    if (before.keys != tile.keys || before.table != tile.table) return 0;
    const int64_t bytes = 2 * (tile.key_words + tile.value_words);  // of a slot
    return (tile.highest + 1) * bytes <= kNear ? before.highest / 32 : 0;
  }

  const PartialAttentionParams& p_;
  const Part share_;
  Tasks tasks_;
  int64_t total_ = 0, before_ = 0;
  int used_ = 0;
  AttentionTile tiles_[TileSource::kKept];
};

}  // namespace

void attention(const AttendFunctions& functions, const PartialAttentionParams& p,
               const Execution& on) {
  const bool is_f32 = p.of.kv.is_f32();
  ShareOfTiles tiles(p, is_f32 ? kVectorTileQueries : functions.tile_queries, on.share);
  (is_f32 ? functions.f32 : functions.bf16)(
      {.take = [](void* of) { return static_cast<ShareOfTiles*>(of)->next(); }, .of = &tiles});
}

}  // namespace invar::cpu
