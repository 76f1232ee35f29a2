// Recordings of runs, and the first operation in which two of them differ.
//
// A record is one row of one operation's output. It is known by what it computes (request,
// position, operation), not by the step in which it was computed, so runs with other chunks,
// neighbours, threads or instruction sets have the same records.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "model/trace.h"

namespace invar {

// Hash of a row: XXH3 (64 bits) of its values as f32, -0 as +0 and every NaN as one.
uint64_t trace_hash(std::span<const float> values);

class TraceWriter final : public Trace {
 public:
  // `about` says what was run. Every record has its hash; values are kept too until they take
  // `max_value_bytes`. Throws Error when the file cannot be written, here and below.
  TraceWriter(const std::string& path, const json::Value& about, int64_t max_value_bytes);

  void begin_step(std::span<const TracedRow> rows) override;
  void record(const TracedOp& op) override;
  // Gives the file its name: without this call there is no file.
  void finish() { file_.commit(); }

  int64_t records() const { return records_; }
  int64_t records_without_values() const { return without_values_; }
  int64_t bytes() const { return end_; }

 private:
  void append(std::span<const std::byte> bytes);

  AtomicFile file_;
  int64_t end_ = 0;
  int64_t value_bytes_left_;
  int64_t records_ = 0, without_values_ = 0;
  std::vector<TracedRow> rows_;  // of the step
  std::vector<float> values_;    // of the operation, rows together
};

// An operation of the model: the n-th of every row.
struct TraceOp {
  std::string name;
  int layer = -1;
  bool operator==(const TraceOp&) const = default;
};

struct TraceRecord {
  int64_t request;
  int32_t position;
  int32_t op;  // index into TraceFile::ops
  uint64_t hash;
  int64_t width;
  const float* values;  // [width], or null when they were not kept
};

// A recording, read back. Throws Error for anything that is not a whole one.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const json::Value& about() const { return about_; }
  const std::vector<TraceOp>& ops() const { return ops_; }
  // One per row and operation, in order of computation: by request, position, operation. A row that
  // was computed again, after a preemption, has its last record.
  const std::vector<TraceRecord>& records() const { return records_; }

 private:
  int32_t op_index(std::string_view name, int layer);

  MappedFile file_;
  json::Value about_;
  std::vector<TraceOp> ops_;
  std::vector<TraceRecord> records_;
};

// The first record that the runs do not share.
struct TraceDifference {
  const TraceRecord* a;  // null: only the other run has it
  const TraceRecord* b;
  bool has_values = false;  // of both; else the following are unknown
  int64_t differing_values = 0;
  int64_t index = 0;  // of the first differing value
};

struct TraceComparison {
  int64_t equal = 0, different = 0, only_a = 0, only_b = 0;
  // Outputs that ranks share out among them, of runs with different numbers of ranks.
  int64_t not_comparable = 0;
  std::optional<TraceDifference> first;
};

// Throws Error for runs of models with different operations.
TraceComparison compare(const TraceFile& a, const TraceFile& b);

// Representable f32 values from x to y, 1 for neighbours; 0 when they are the same to trace_hash.
// Nothing for a NaN and a number.
std::optional<uint64_t> ulp_distance(float x, float y);

}  // namespace invar
