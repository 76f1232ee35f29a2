#include "kernels/cpu/adapters.h"

#include <algorithm>
#include <cstring>

namespace invar::cpu {

namespace {

// So many rows of a group go through a panel at a time; more are pieces of their own, which threads
// share.
constexpr int64_t kPieceRows = 128;

int64_t pieces_of(const AdapterGroup& group) {
  return (group.rows + kPieceRows - 1) / kPieceRows;
}

// The runs of a group's rows that lie in one piece.
template <typename Use>
void for_runs(const AdapterGroup& group, int64_t piece, Use use) {
  const int64_t begin = piece * kPieceRows, end = begin + kPieceRows;
  int64_t at = 0;
  for (int32_t i = 0; i < group.num_runs && at < end; at += group.runs[i++].count) {
    const RowRun run = group.runs[i];
    const int64_t low = std::max<int64_t>(begin - at, 0);
    const int64_t high = std::min<int64_t>(end - at, run.count);
    if (low < high) use(run.first + low, high - low);
  }
}

// Panels of one matrix that a piece of a group's rows is multiplied with.
struct Task {
  const AdapterGroup* group;
  const Matrix* w;
  const AdapterOutputs* to;
  int64_t piece;
};

// Calls use(task, first panel, number of panels) for a share of all panels of all tasks, which
// stand on one line.
class Line {
 public:
  explicit Line(Part share, int64_t panels)
      : begin_(panels * share.index / share.count),
        end_(panels * (share.index + 1) / share.count) {}
  template <typename Use>
  void pass(const Task& task, Use use) {
    const int64_t panels = task.w->panels();
    const int64_t low = std::max(begin_ - at_, int64_t{0}), high = std::min(end_ - at_, panels);
    if (low < high) use(task, low, high - low);
    at_ += panels;
  }

 private:
  int64_t begin_, end_, at_ = 0;
};

// Calls use(task) for what is to be multiplied: A of every group, or each B.
template <typename Use>
void for_tasks(const AdapterParams& p, bool expands, Use use) {
  for (int32_t g = 0; g < p.num_groups; ++g) {
    const AdapterGroup& group = p.groups[g];
    for (int64_t piece = 0; piece < pieces_of(group); ++piece) {
      if (!expands) use(Task{&group, &group.a, nullptr, piece});
      for (int32_t i = 0; expands && i < group.tensors; ++i)
        use(Task{&group, &group.outputs[i].b, &group.outputs[i], piece});
    }
  }
}

template <typename Use>
void for_share(const AdapterParams& p, bool expands, Part share, Use use) {
  int64_t panels = 0;
  for_tasks(p, expands, [&](const Task& task) { panels += task.w->panels(); });
  Line line(share, panels);
  for_tasks(p, expands, [&](const Task& task) { line.pass(task, use); });
}

Matrix panels_of(Matrix w, int64_t first, int64_t count) {
  w.data = static_cast<const char*>(w.data) + first * w.unit_bytes();
  w.n = std::min(count * kPanelWidth, w.n - first * kPanelWidth);
  return w;
}

Activation columns_from(Activation x, int64_t row, int64_t column) {
  x.data = static_cast<char*>(x.data) + (row * x.stride + column) * size_of(x.type);
  return x;
}

}  // namespace

void adapter_shrink(const AdapterParams& p, const Execution& on) {
  for_share(p, false, on.share, [&](const Task& task, int64_t first, int64_t count) {
    for_runs(*task.group, task.piece, [&](int64_t row, int64_t rows) {
      p.matmul({.x = p.x.from(row),
                .w = panels_of(*task.w, first, count),
                .rows = rows,
                .split_k = p.split_k,
                .bias = nullptr,
                .accumulate = false,
                .y = p.sums + row * p.sums_stride + first * kPanelWidth,
                .y_stride = p.sums_stride},
               on.of({}));
    });
  });
}

void adapter_expand(const AdapterParams& p, const Execution& on) {
  for_share(p, true, on.share, [&](const Task& task, int64_t first, int64_t count) {
    const AdapterOutputs& to = *task.to;
    // The panels of a gated pair stand apart.
    const int64_t at_once = to.step == 1 ? count : 1;
    for (int64_t panel = first; panel < first + count; panel += at_once)
      for_runs(*task.group, task.piece, [&](int64_t row, int64_t rows) {
        p.matmul({.x = columns_from(p.inner, row, to.inner),
                  .w = panels_of(to.b, panel, at_once),
                  .rows = rows,
                  .split_k = 1,
                  .bias = nullptr,
                  .accumulate = true,
                  .y = p.y + row * p.y_stride + to.output + panel * kPanelWidth * to.step,
                  .y_stride = p.y_stride},
                 on.of({}));
      });
  });
}

void gate_pairs(const RowFunctions& rows, const GatePairsParams& p, const Execution& on) {
  // Shares are columns of rows, so that one row is shared out, too.
  constexpr int64_t kColumns = 256;
  const int64_t padded = round_up(p.width, kLeafPad);
  const int64_t pieces = (padded + kColumns - 1) / kColumns, element = size_of(p.out.type);
  const auto [begin, end] = on.share.of(p.rows * pieces);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / pieces, first = i % pieces * kColumns;
    const int64_t last = std::min(first + kColumns, padded), real = std::min(last, p.width);
    char* out = static_cast<char*>(p.out.data) + (t * p.out.stride + first) * element;
    if (real > first)
      rows.gate_pairs(static_cast<int>(p.curve), p.dots + t * p.dots_stride + 2 * first,
                      real - first, out, p.out.type == DType::bf16);
    const int64_t written = std::max(real, first);
    std::memset(out + (written - first) * element, 0,
                static_cast<size_t>((last - written) * element));
  }
}

}  // namespace invar::cpu
