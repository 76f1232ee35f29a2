#include "engine/trace_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

// A file is kMagic, the length of a JSON text, the text padded with spaces to whole words, and
// blocks: a BlockHeader, `rows` RowHeaders, and `rows` times `width` values when they were kept,
// padded with zeros to whole words.
constexpr char kMagic[8] = {'i', 'n', 'v', 't', 'r', 'c', '1', '\n'};
constexpr size_t kWord = 8;

struct BlockHeader {
  char name[24];  // padded with zeros
  int32_t layer;
  uint32_t has_values;
  int64_t width;
  int64_t rows;
};

struct RowHeader {
  int64_t request;
  int64_t position;
  uint64_t hash;
};

constexpr size_t padded(size_t bytes) {
  return (bytes + kWord - 1) / kWord * kWord;
}

float canonical(float x) {
  if (x != x) return std::bit_cast<float>(0x7fc00000u);
  return x == 0.0f ? 0.0f : x;
}

auto order_of(const TraceRecord& r) {
  return std::tie(r.request, r.position, r.op);
}

bool same(float x, float y) {
  return std::bit_cast<uint32_t>(canonical(x)) == std::bit_cast<uint32_t>(canonical(y));
}

TraceDifference difference(const TraceRecord& a, const TraceRecord& b) {
  TraceDifference d{.a = &a, .b = &b};
  if (!a.values || !b.values || a.width != b.width) return d;
  d.has_values = true;
  for (int64_t i = a.width - 1; i >= 0; --i)
    if (!same(a.values[i], b.values[i])) ++d.differing_values, d.index = i;
  return d;
}

}  // namespace

uint64_t trace_hash(std::span<const float> values) {
  std::vector<float> copy(values.size());
  std::transform(values.begin(), values.end(), copy.begin(), canonical);
  return XXH3_64bits(copy.data(), copy.size() * sizeof(float));
}

TraceWriter::TraceWriter(const std::string& path, const json::Value& about, int64_t max_value_bytes)
    : file_(path), value_bytes_left_(max_value_bytes) {
  std::string text = json::dump(about);
  text.resize(padded(text.size()), ' ');
  const uint64_t size = text.size();
  append(std::as_bytes(std::span(kMagic)));
  append(std::as_bytes(std::span(&size, 1)));
  append(std::as_bytes(std::span(text)));
}

void TraceWriter::append(std::span<const std::byte> bytes) {
  file_.write_at(end_, bytes);
  end_ += static_cast<int64_t>(bytes.size());
}

void TraceWriter::begin_step(std::span<const TracedRow> rows) {
  rows_.assign(rows.begin(), rows.end());
  // The tokens come first, as values: runs that differ in what they were given say so.
  std::vector<float> tokens;
  for (const TracedRow& row : rows) tokens.push_back(static_cast<float>(row.token));
  record({"token", -1, tokens.data(), std::ssize(rows), 1, 1, nullptr});
}

void TraceWriter::record(const TracedOp& op) {
  CHECK(op.rows_of || op.rows == std::ssize(rows_), "an operation with rows of another step");
  BlockHeader header{.layer = op.layer, .width = op.width, .rows = op.rows};
  CHECK(op.name.size() < sizeof header.name, "an operation with a long name");
  op.name.copy(header.name, op.name.size());

  std::vector<RowHeader> rows;
  values_.clear();
  for (int64_t i = 0; i < op.rows; ++i) {
    const TracedRow& row = rows_[op.rows_of ? op.rows_of[i] : i];
    const std::span<const float> values(op.values + i * op.stride, op.width);
    rows.push_back({row.request, row.position, trace_hash(values)});
    values_.insert(values_.end(), values.begin(), values.end());
  }
  values_.resize(padded(values_.size() * sizeof(float)) / sizeof(float));
  const int64_t value_bytes = std::ssize(values_) * static_cast<int64_t>(sizeof(float));
  // Values behind the first that had no room have none either: the kept ones are the run's first.
  if (value_bytes > value_bytes_left_) value_bytes_left_ = 0;
  header.has_values = value_bytes <= value_bytes_left_;
  append(std::as_bytes(std::span(&header, 1)));
  append(std::as_bytes(std::span(rows)));
  records_ += op.rows;
  if (header.has_values) {
    append(std::as_bytes(std::span(values_)));
    value_bytes_left_ -= value_bytes;
  } else {
    without_values_ += op.rows;
  }
}

TraceFile::TraceFile(const std::string& path) : file_(path) {
  const auto bytes = file_.bytes();
  size_t at = 0;
  const auto take = [&](size_t size) {
    if (size > bytes.size() - at)
      fail("{}: the recording ends early, at byte {}; expected {} more", path, bytes.size(),
           size - (bytes.size() - at));
    const std::byte* data = bytes.data() + at;
    at += size;
    return data;
  };
  if (bytes.size() < sizeof kMagic || std::memcmp(take(sizeof kMagic), kMagic, sizeof kMagic) != 0)
    fail("{}: expected a recording that was made with --trace, found another kind of file", path);
  uint64_t text_size;
  std::memcpy(&text_size, take(sizeof text_size), sizeof text_size);
  if (text_size % kWord) fail("{}: the recording's description has {} bytes", path, text_size);
  const char* text = reinterpret_cast<const char*>(take(text_size));
  about_ = json::parse({text, text_size}, path);

  while (at < bytes.size()) {
    const size_t begin = at;
    BlockHeader header;
    std::memcpy(&header, take(sizeof header), sizeof header);
    const int64_t most = static_cast<int64_t>(bytes.size());
    if (header.name[sizeof header.name - 1] != 0 || header.has_values > 1 || header.rows < 0 ||
        header.rows > most || header.width < 0 || header.width > int64_t{1} << 32)
      fail("{}: malformed block at byte {}", path, begin);
    const int32_t op = op_index(header.name, header.layer);
    const std::byte* rows = take(header.rows * sizeof(RowHeader));
    const float* values = nullptr;
    if (header.has_values) {
      if (header.rows && header.width > most / header.rows)
        fail("{}: malformed block at byte {}", path, begin);
      values =
          reinterpret_cast<const float*>(take(padded(header.rows * header.width * sizeof(float))));
    }
    for (int64_t i = 0; i < header.rows; ++i) {
      RowHeader row;
      std::memcpy(&row, rows + i * sizeof row, sizeof row);
      records_.push_back({.request = row.request,
                          .position = static_cast<int32_t>(row.position),
                          .op = op,
                          .hash = row.hash,
                          .width = header.width,
                          .values = values ? values + i * header.width : nullptr});
    }
  }
  std::stable_sort(records_.begin(), records_.end(),
                   [](const auto& x, const auto& y) { return order_of(x) < order_of(y); });
  size_t kept = 0;
  for (size_t i = 0; i < records_.size(); ++i)
    if (i + 1 == records_.size() || order_of(records_[i]) != order_of(records_[i + 1]))
      records_[kept++] = records_[i];
  records_.resize(kept);
}

// Steps repeat the same operations in the same order, so the first appearance is the order; those
// of rows with logits come last.
int32_t TraceFile::op_index(std::string_view name, int layer) {
  const auto it = std::find_if(ops_.begin(), ops_.end(), [&](const TraceOp& op) {
    return op.layer == layer && op.name == name;
  });
  const auto index = static_cast<int32_t>(it - ops_.begin());
  if (it == ops_.end()) ops_.push_back({std::string(name), layer});
  return index;
}

TraceComparison compare(const TraceFile& a, const TraceFile& b) {
  if (a.ops() != b.ops())
    fail("{} and {} were recorded with models of different operations and cannot be compared",
         a.path(), b.path());
  const auto *ranks_a = a.about().find("ranks"), *ranks_b = b.about().find("ranks");
  const bool same_ranks = (ranks_a && ranks_b) ? *ranks_a == *ranks_b : !ranks_a && !ranks_b;
  TraceComparison result;
  const auto found = [&](const TraceDifference& d) {
    if (!result.first) result.first = d;
  };
  auto x = a.records().begin(), y = b.records().begin();
  const auto x_end = a.records().end(), y_end = b.records().end();
  while (x != x_end || y != y_end) {
    if (y == y_end || (x != x_end && order_of(*x) < order_of(*y))) {
      found({.a = &*x, .b = nullptr});
      ++result.only_a, ++x;
    } else if (x == x_end || order_of(*y) < order_of(*x)) {
      found({.a = nullptr, .b = &*y});
      ++result.only_b, ++y;
    } else {
      if (x->width != y->width && !same_ranks) {
        ++result.not_comparable;
      } else if (x->width == y->width && x->hash == y->hash) {
        ++result.equal;
      } else {
        found(difference(*x, *y));
        ++result.different;
      }
      ++x, ++y;
    }
  }
  return result;
}

std::optional<uint64_t> ulp_distance(float x, float y) {
  x = canonical(x), y = canonical(y);
  if (same(x, y)) return 0;
  if (x != x || y != y) return std::nullopt;
  // Bits as integers that ascend with the value.
  const auto place = [](float v) {
    const int64_t bits = std::bit_cast<uint32_t>(v);
    return bits & 0x80000000 ? 0x80000000 - bits : bits;
  };
  const int64_t distance = place(x) - place(y);
  return static_cast<uint64_t>(distance < 0 ? -distance : distance);
}

}  // namespace invar
