#include "train/drafter/unrolled_attention.h"

#include <algorithm>

#include "numerics/math.h"

namespace invar {

namespace {

constexpr int kLanes = 8;

float dot(const float* a, const float* b, int count) {
  float lane[kLanes] = {};
  for (int i = 0; i < count; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lane[j] = __builtin_fmaf(a[i + j], b[i + j], lane[j]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

void add_scaled(float* y, float scale, const float* x, int count) {
  for (int i = 0; i < count; ++i) y[i] = __builtin_fmaf(scale, x[i], y[i]);
}

// A row of one query head: what it reads and where its slots lie.
class Row {
 public:
  Row(const UnrolledShape& shape, const Batch& batch, std::span<const float* const> qkv, int64_t t,
      int head)
      : shape_(shape),
        qkv_(qkv),
        step_(static_cast<int>(qkv.size()) - 1),
        position_(batch.rows[static_cast<size_t>(t)].position),
        begin_(t - position_),
        row_(t),
        query_(int64_t{head} * shape.head_dim),
        key_(shape.query_width() + head / (shape.heads / shape.kv_heads) * shape.head_dim) {}

  int slots() const { return position_ < step_ ? 0 : position_ + 1; }
  int step_of(int slot) const { return std::max(0, slot - (position_ - step_)); }
  // Elements before those of this head in an array like qkv.
  int64_t key_at(int slot) const { return (begin_ + slot) * shape_.width() + key_; }
  int64_t value_at(int slot) const { return key_at(slot) + shape_.kv_width(); }
  int64_t query_at() const { return row_ * shape_.width() + query_; }
  const float* query() const { return qkv_[static_cast<size_t>(step_)] + query_at(); }
  const float* key(int slot) const { return of(slot) + key_at(slot); }
  const float* value(int slot) const { return of(slot) + value_at(slot); }

  // softmax(q * k / sqrt(E)) over the slots.
  void probabilities(float scale, std::vector<float>& p) const {
    p.resize(static_cast<size_t>(slots()));
    float most = 0, sum = 0;
    for (int j = 0; j < slots(); ++j) {
      p[j] = dot(query(), key(j), shape_.head_dim) * scale;
      most = j == 0 ? p[j] : std::max(most, p[j]);
    }
    for (float& x : p) sum += x = math::exp(x - most);
    for (float& x : p) x /= sum;
  }

 private:
  const float* of(int slot) const { return qkv_[static_cast<size_t>(step_of(slot))]; }

  const UnrolledShape& shape_;
  std::span<const float* const> qkv_;
  int step_, position_;
  int64_t begin_, row_, query_, key_;
};

float scale_of(const UnrolledShape& shape) {
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(shape.head_dim)));
}

// One row of one query head; `p` and `ds` are scratch.
void row_backward(const Row& row, const UnrolledShape& shape, const float* d_out,
                  std::span<float* const> d_qkv, std::vector<float>& p, std::vector<float>& ds) {
  const int e = shape.head_dim;
  const float scale = scale_of(shape);
  float* dq = d_qkv.back() + row.query_at();
  std::fill_n(dq, e, 0.0f);
  row.probabilities(scale, p);
  ds.resize(p.size());
  float mean = 0;
  for (int j = 0; j < row.slots(); ++j) {
    ds[j] = dot(d_out, row.value(j), e);
    mean = __builtin_fmaf(p[j], ds[j], mean);
  }
  for (int j = 0; j < row.slots(); ++j) {
    const float d = (p[j] * (ds[j] - mean)) * scale;
    float* of_step = d_qkv[static_cast<size_t>(row.step_of(j))];
    add_scaled(dq, d, row.key(j), e);
    add_scaled(of_step + row.key_at(j), d, row.query(), e);
    add_scaled(of_step + row.value_at(j), p[j], d_out, e);
  }
}

}  // namespace

void unrolled_attention(const UnrolledShape& shape, const Batch& batch,
                        std::span<const float* const> qkv, float* out, ThreadPool& pool) {
  const int64_t rows = std::ssize(batch.rows);
  pool.run([&](Part part) {
    std::vector<float> p;
    for (int64_t i = part.index; i < rows * shape.heads; i += part.count) {
      const int head = static_cast<int>(i % shape.heads);
      const Row row(shape, batch, qkv, i / shape.heads, head);
      float* y = out + i * shape.head_dim;
      std::fill_n(y, shape.head_dim, 0.0f);
      row.probabilities(scale_of(shape), p);
      for (int j = 0; j < row.slots(); ++j) add_scaled(y, p[j], row.value(j), shape.head_dim);
    }
  });
}

void unrolled_attention_backward(const UnrolledShape& shape, const Batch& batch,
                                 std::span<const float* const> qkv, const float* d_out,
                                 std::span<float* const> d_qkv, ThreadPool& pool) {
  std::vector<int64_t> begins;  // of sequences
  for (int64_t t = 0; t < std::ssize(batch.rows); ++t)
    if (batch.rows[t].position == 0) begins.push_back(t);
  begins.push_back(std::ssize(batch.rows));
  const int64_t units = (std::ssize(begins) - 1) * shape.kv_heads;
  const int group = shape.heads / shape.kv_heads;
  pool.run([&](Part part) {
    std::vector<float> p, ds;
    for (int64_t unit = part.index; unit < units; unit += part.count) {
      const int64_t sequence = unit / shape.kv_heads;
      const int first = static_cast<int>(unit % shape.kv_heads) * group;
      for (int head = first; head < first + group; ++head)
        for (int64_t t = begins[sequence]; t < begins[sequence + 1]; ++t)
          row_backward(Row(shape, batch, qkv, t, head), shape,
                       d_out + (t * shape.heads + head) * shape.head_dim, d_qkv, p, ds);
    }
  });
}

}  // namespace invar
